"""Does weight decay during training lower the error of int8? DQN, two tasks, three seeds. Resumable.

    python benchmarks/weight_decay.py [--minutes 60] [--only CartPole-v1]

Each cell is a training with RL Zoo's tuned hyper-parameters and Adam's weight decay (an L2 penalty), and what
post-training quantisation makes of the best agent of its running evaluations, in the same 100 episodes each.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl import stats
from quarl.config import TrainConfig
from quarl.evaluate import evaluate
from quarl.experiments.methods.cells import Cell, Cells
from quarl.experiments.precisions import EXACT, Settings, record
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import as_float32
from quarl.ptq import quantize
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from quarl.runs.folder import BEST
from quarl.runs.train import Training
from results import write

Array = NDArray[Any]
TASKS = ("CartPole-v1", "Acrobot-v1")
"""Where DQN loses most by a naive int8."""
DECAYS = (0.0, 1e-4, 1e-3, 1e-2)
SEEDS = (0, 1, 2)
EPISODES = 100
ARMS = (("8", "naive"), ("8", "default"), ("4", "naive"), ("4", "default"))
"""(bits, scheme); the question is about the first two."""


def training(task: str, decay: float, seed: int, folder: Path) -> TrainConfig:
    """`quarl train`, evaluated twenty times in its course."""
    kwargs = f"policy_kwargs:dict(net_arch=[256, 256], optimizer_kwargs=dict(weight_decay={decay!r}))"
    steps = {"CartPole-v1": 50_000, "Acrobot-v1": 100_000}[task]
    return TrainConfig(
        algo="dqn",
        env=task,
        n_timesteps=steps,
        params=(kwargs,),
        folder=folder,
        eval_freq=steps // 20,
        save_freq=0,
        threads=1,
        device="cpu",
        seed=seed,
    )


def measure(task: str, decay: float, seed: int, folder: Path) -> Cell:
    """One training, and the returns of its best agent in float32 and quantised."""
    shutil.rmtree(folder, ignore_errors=True)  # what is there was broken off
    session = Training(training(task, decay, seed, folder), lambda line: None)
    ended = session.run(lambda label, done: None)
    if ended.row is None:
        raise KeyboardInterrupt
    policy = read(session.folder().path / f"{BEST}.zip")
    calibration = record(policy, "calibration", Settings(seed=seed))
    specs = {f"{bits}-{scheme}": QuantSpec.parse(bits, scheme=scheme) for bits, scheme in ARMS}
    played = {name: play(quantize(policy, spec, calibration), seed) for name, spec in specs.items()}
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "minutes": ended.row.clock_s / 60,
        "fp32": play(quantize(policy, EXACT), seed),
        "weights": weights(policy),
        **played,
    }


def play(policy: QuantizedPolicy, seed: int) -> list[float]:
    """Returns, the same episodes for every precision."""
    returns: list[float] = evaluate(policy, episodes=EPISODES, seed=seed, stochastic=False).returns.tolist()
    return returns


def weights(policy: Policy) -> dict[str, float]:
    """How wide all weights are: from the smallest to the largest, and the largest in standard deviations."""
    found = np.concatenate([as_float32(op.weight).ravel() for op in policy.linear])
    spread = float(np.abs(found).max() / found.std())
    return {"range": float(np.ptp(found)), "std": float(found.std()), "spread": spread}


def rows(cells: dict[tuple[str, float, int], Cell]) -> Iterator[dict[str, Any]]:
    """One for each training and way to quantise it."""
    for (task, decay, seed), cell in cells.items():
        exact = np.array(cell["fp32"])
        for bits, scheme in ARMS:
            error = stats.error_interval(exact, np.array(cell[f"{bits}-{scheme}"]), np.random.default_rng(0))
            yield {
                "task": task,
                "weight_decay": decay,
                "seed": seed,
                "precision": f"int{bits}",
                "scheme": scheme,
                "fp32": float(exact.mean()),
                "mean": float(np.mean(cell[f"{bits}-{scheme}"])),
                "error_pct": error.point,
                "error_low": error.low,
                "error_high": error.high,
                **{f"weight_{name}": value for name, value in cell["weights"].items()},
                "minutes": cell["minutes"],
            }


def summaries(cells: dict[tuple[str, float, int], Cell]) -> Iterator[dict[str, Any]]:
    """One for each task, decay and way to quantise, over the seeds."""
    for task in TASKS:
        for decay in DECAYS:
            own = [cell for (t, d, _), cell in cells.items() if (t, d) == (task, decay)]
            if not own:
                continue
            fp32 = stats.over_seeds([np.array(cell["fp32"]) for cell in own], np.random.default_rng(0))
            for bits, scheme in ARMS:
                pairs = [(np.array(cell["fp32"]), np.array(cell[f"{bits}-{scheme}"])) for cell in own]
                error = stats.error_over_seeds(pairs, np.random.default_rng(0))
                yield {
                    "task": task,
                    "weight_decay": decay,
                    "seeds": len(own),
                    "precision": f"int{bits}",
                    "scheme": scheme,
                    "fp32": fp32.point,
                    "fp32_low": fp32.low,
                    "fp32_high": fp32.high,
                    "error_pct": error.point,
                    "error_low": error.low,
                    "error_high": error.high,
                    "weight_range": float(np.mean([cell["weights"]["range"] for cell in own])),
                    "weight_spread": float(np.mean([cell["weights"]["spread"] for cell in own])),
                }


def answers(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each task and scheme at int8: whether an error with decay lies below that without."""
    for task in TASKS:
        for scheme in ("naive", "default"):
            own = [row for row in found if (row["task"], row["precision"], row["scheme"]) == (task, "int8", scheme)]
            without = next((row for row in own if row["weight_decay"] == 0), None)
            if without is None:
                continue
            texts = [
                f"{row['weight_decay']:g}: E {row['error_pct']:.1f} % [{row['error_low']:.1f}, {row['error_high']:.1f}]"
                f" of {row['fp32']:.1f}, weights {row['weight_range']:.2f} wide"
                for row in own
            ]
            lower = [f"{row['weight_decay']:g}" for row in own if row["error_high"] < without["error_low"]]
            verdict = f"lower with {', '.join(lower)}" if lower else "not shown to be lower with any decay"
            yield f"{task}, int8 {scheme}: {verdict} ({'; '.join(texts)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no training begins")
    parser.add_argument("--only", nargs="*", default=list(TASKS), help="tasks")
    options = parser.parse_args()
    folder = Path("runs/weight-decay")
    store = Cells(folder, options.minutes, lambda line: print(line, file=sys.stderr, flush=True))
    cells: dict[tuple[str, float, int], Cell] = {}
    for task in options.only:
        for seed in SEEDS:
            for decay in DECAYS:
                name = f"{task}-decay{decay:g}-{seed}"
                own = folder / "runs" / name
                settings = {"task": task, "decay": decay, "seed": seed, "episodes": EPISODES, "arms": ARMS}
                cell = store.get(name, settings, lambda own=own, each=(task, decay, seed): measure(*each, own))
                if cell is not None:
                    cells[task, decay, seed] = cell
    shutil.rmtree(folder / "runs", ignore_errors=True)
    found = list(summaries(cells))
    for line in answers(found):
        print(line)
    if store.missing:
        print(f"the time is over with {store.missing} trainings to go: repeat the command to go on")
    if set(options.only) == set(TASKS):
        command = "python benchmarks/weight_decay.py"
        summary = [{"missing": store.missing, "answers": list(answers(found))}]
        write("weight-decay", command, summary=summary, summaries=found, rows=rows(cells))


if __name__ == "__main__":
    main()
