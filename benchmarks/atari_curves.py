"""Learning curves of a game's agents in one figure.

python benchmarks/atari_curves.py [--game Pong] [--out results]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from quarl.report import style
from results import RESULTS, here, read

ALGORITHMS = ("dqn", "ppo", "a2c")
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)


def draw(out: Path, game: str) -> Path | None:
    """Draws what is in `out`, and says where; None where no agent of the game is."""
    rows = {row["name"]: row for row in read("atari", "training", root=out)}
    found = {algo: rows[name] for algo in ALGORITHMS if (name := named(algo, game)) in rows}
    if not found:
        return None
    with style.look():
        figure, (axes,) = style.panels(1, height=3.2)
        for colour, (algo, training) in zip(style.SERIES, found.items(), strict=False):
            steps = [point["steps"] / 1e6 for point in training["curve"]]
            axes.plot(steps, [point["mean"] for point in training["curve"]], color=colour, label=label(algo, training))
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_xlabel("million environment steps")
        axes.set_ylabel("points")
        axes.set_title(f"{game} from pixels: running evaluations, one seed each")
        axes.legend()
    path = out / "atari" / here() / f"{named('curves', game)}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    style.save(figure, path)
    return path


def named(what: str, game: str) -> str:
    """Of a file without its suffix: Pong's go without the game."""
    return what if game == "Pong" else f"{what}-{game}"


def label(algo: str, training: dict[str, Any]) -> str:
    """With the final agent's whole games."""
    final = training["return"]
    return f"{algo}: {final['mean']:.1f} [{final['ci_low']:.1f}, {final['ci_high']:.1f}] at the end"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Pong", help="as in PongNoFrameskip-v4")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = draw(options.out, options.game)
    print(f"figure: {path}" if path else f"no agents of {options.game} in {options.out}: run atari.py first")


if __name__ == "__main__":
    main()
