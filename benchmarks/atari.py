"""Pong from pixels with PPO, A2C and DQN: trained, quantised at every width, fine-tuned for 8 and 4 bits. Resumable.

python benchmarks/atari.py [--only ppo] [--minutes 60] [--game Pong] [--learner-dtype bf16]

Training stops with a checkpoint when the minutes are over, and the same command goes on; what is measured stays. Agents
lie in FOLDER, 7 MB each and a gigabyte of DQN's replay, and are made again by this command; results lie in --out.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from quarl import stats
from quarl.calibration import quantize
from quarl.cli import main as quarl
from quarl.config import PtqConfig
from quarl.evaluation import Evaluation, evaluate
from quarl.inert.npz import read_npz
from quarl.policy.graph import QuantizedPolicy
from quarl.post_training.measure import measure
from quarl.quant.spec import QuantSpec
from quarl.readers import load
from quarl.report import style
from quarl.runs import checkpoint
from quarl.runs.folder import RunFolder
from results import RESULTS, here, read, write

STEPS = {"ppo": 2_500_000, "a2c": 8_000_000, "dqn": 1_000_000}
"""Less than the zoo's 10 million: enough for Pong, where A2C has hardly begun to score after 3 million."""
FINE_TUNING = {"ppo": 250_000, "a2c": 250_000, "dqn": 100_000}
"""Steps: at most a tenth of a training's."""
BITS = (8, 7, 6, 5, 4, 3, 2)
QAT_BITS = ("8", "4")
RAINBOW = ("n_steps:3", "policy_kwargs:dict(optimizer_kwargs=dict(eps=0.00015, fused=True))")
"""DQN's returns over three steps and Adam's epsilon (Hessel et al. 2018, table 1). With RL Zoo's one step and 1e-8,
96 % of the dense units were dead after 525,000 steps and every game lost by 21; before the first points gradients are
tiny, of which Adam with a small epsilon makes full steps. fused: Adam in one pass over its 1.7 million weights, several
times faster on a CPU.
"""
DQN_TRAINING = (*RAINBOW, "learning_starts:50000", "exploration_fraction:0.2")
DQN_TUNING = (*RAINBOW, "learning_starts:10000", "buffer_size:50000")
"""RL Zoo's DQN begins to learn after 100,000 steps: all that fine-tuning has."""
RUNNING_EPISODES = 5
"""Games of an evaluation in the course of training."""
MARGIN_PCT = 5.0
EXACT = QuantSpec.parse("fp32")
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Million environment steps."""


class Over(Exception):
    """The time is."""


class Clock:
    """The time that is left."""

    def __init__(self, minutes: float) -> None:
        self.deadline = time.monotonic() + 60 * minutes

    def check(self) -> None:
        if time.monotonic() > self.deadline:
            raise Over

    def train(self, words: Sequence[str]) -> None:
        """Runs `quarl train`; Over where the time ended it, with a checkpoint to go on from."""
        self.check()
        alarm = threading.Timer(self.deadline - time.monotonic(), os.kill, (os.getpid(), signal.SIGINT))
        alarm.daemon = True
        alarm.start()
        try:
            code = quarl(["train", *words])
        finally:
            alarm.cancel()
        if code == 130:
            raise Over
        if code:
            raise SystemExit(code)


class Agent:
    """One algorithm's agents and results."""

    def __init__(self, algo: str, options: argparse.Namespace) -> None:
        game, seed = options.game, options.seed
        self.algo, self.game, self.env_id = algo, game, f"{game}NoFrameskip-v4"
        self.dtype: str = options.learner_dtype
        self.folder: Path = options.agents
        self.threads: int | None = options.threads
        self.name: str = named(algo, game)
        self.out: Path = options.out
        self.settings = PtqConfig(episodes=options.episodes, seed=seed, margin=MARGIN_PCT, workers=options.workers)
        rows = [row for row in read("atari", root=self.out) if row.get("name") == self.name]
        self.training = next((row for row in rows if row["table"] == "training"), None)
        self.ptq = [row for row in rows if row["table"] == "ptq"]
        self.qat = {row["bits"]: row for row in rows if row["table"] == "qat"}
        if self.training is not None:
            found, asked = (self.training["seed"], len(self.training["returns"])), (seed, options.episodes)
            if found != asked or self.training["steps"] < STEPS[algo]:
                raise SystemExit(f"{self.name} in {self.out} has seed and games {found}, or fewer steps: other --out")

    def measure(self, clock: Clock) -> None:
        """Does what is missing: training, final games, widths, fine-tuning."""
        if self.training is None:
            more = ["--learner-dtype", self.dtype]
            more += ["--params", *DQN_TRAINING] if self.algo == "dqn" else []
            run = self.train(clock, self.folder, STEPS[self.algo], *more)
            self.dtype = RunFolder(run, self.env_id).read_args()["learner_dtype"]  # a resumed run keeps its own
            about = {"algo": self.algo, "env_id": self.env_id, "seed": self.settings.seed, "command": self.command}
            about |= {"learner_dtype": self.dtype}
            self.training = about | curve(run) | self.final(run / f"{self.env_id}.zip")
            self.write(training=[self.training])
        run = self.run_in(self.folder)
        if not self.ptq:
            clock.check()
            self.ptq = self.quantised(run / f"{self.env_id}.zip")
            self.write(ptq=self.ptq)
        for bits in QAT_BITS:
            if bits not in self.qat:
                self.qat[bits] = {"bits": bits, **self.fine_tuned(clock, run / f"{self.env_id}.zip", bits)}
                self.write(qat=list(self.qat.values()))

    @property
    def command(self) -> str:
        """That makes the agent again."""
        game = f" --game {self.game}" * (self.game != "Pong")
        return f"python benchmarks/atari.py --only {self.algo}" + game + f" --learner-dtype {self.dtype}"

    def write(self, **tables: list[dict[str, Any]]) -> None:
        named = {table: [{"name": self.name, **row} for row in rows] for table, rows in tables.items()}
        write("atari", "python benchmarks/atari.py", root=self.out, **named)

    def run_in(self, folder: Path) -> Path:
        return folder / self.algo / f"{self.env_id}_1"

    def train(self, clock: Clock, folder: Path, steps: int, *more: str) -> Path:
        """The run's folder, trained to its end."""
        run = self.run_in(folder)
        saved = trained_steps(run)
        if saved >= steps:
            return run
        words = ["--algo", self.algo, "--env", self.env_id, "-f", str(folder), "-n", str(steps)]
        words += ["--seed", str(self.settings.seed), "--eval-episodes", str(RUNNING_EPISODES)]
        words += ["--threads", str(self.threads)] if self.threads else []
        words += ["--eval-freq", str(max(steps // 20, 1)), "--save-freq", str(max(steps // 20, 1))]
        clock.train([*words, "--resume"] if saved else [*words, *more])
        return run

    def final(self, agent: Path) -> dict[str, Any]:
        """Whole games of the last agent, not of the best one."""
        played = self.play(quantize(load.read(agent), EXACT))
        return {"return": summary(played), "returns": played.returns.tolist(), "lengths": played.lengths.tolist()}

    def play(self, policy: QuantizedPolicy) -> Evaluation:
        settings = self.settings
        return evaluate(policy, episodes=settings.episodes, seed=settings.seed, num_workers=settings.workers)

    def quantised(self, agent: Path) -> list[dict[str, Any]]:
        """Rows of fp32, fp16 and every width, with activations quantised at run time and on calibrated grids."""
        specs = [QuantSpec.parse("fp16"), *(QuantSpec.parse(b, mode=m) for m in ("dynamic", "static") for b in BITS)]
        cells = measure(load.read(agent), specs, self.settings, lambda label, done: print(label, flush=True))
        return [asdict(cell.row) for cell in cells]

    def fine_tuned(self, clock: Clock, agent: Path, bits: str) -> dict[str, Any]:
        """The agent trained on for the precision, beside the float one in the same games."""
        steps = FINE_TUNING[self.algo]
        more = ["--qat", bits, "--quant-delay", str(steps // 2), "-i", str(agent)]
        more += ["--params", *DQN_TUNING] if self.algo == "dqn" else []
        run = self.train(clock, self.folder / f"qat-{bits}", steps, *more)
        policy = load.read(run / f"{self.env_id}.quarl")
        assert isinstance(policy, QuantizedPolicy)
        played, exact = self.play(policy), np.array(self.training["returns"])
        rng = np.random.default_rng(self.settings.seed)
        return {
            "precision": policy.spec.precision,
            "steps": steps,
            "minutes": curve(run)["minutes"],
            "measured": played.measured,
            "return": summary(played),
            "error_pct": stats.error_pct(exact, played.returns, np.random.default_rng(0)),
            **stats.verdict(exact, played.returns, MARGIN_PCT, rng).to_json(),
            "returns": played.returns.tolist(),
        }


def trained_steps(run: Path) -> int:
    """Environment steps of the newest checkpoint; 0 where there is none."""
    if not any(run.glob("checkpoint-*")):
        return 0
    return int(checkpoint.load_latest(run).facts["counters"]["num_timesteps"])


def curve(run: Path) -> dict[str, Any]:
    """The learning curve: steps, minutes (the steps' share of the training clock) and mean points of evaluations."""
    found = checkpoint.load_latest(run)
    steps, minutes = found.facts["counters"]["num_timesteps"], found.state["clock_s"] / 60
    path = run / "evaluations.npz"
    played = read_npz(path.read_bytes(), str(path))
    points = [
        {"steps": int(at), "minutes": round(minutes * at / steps, 1), "mean": round(float(returns.mean()), 2)}
        for at, returns in zip(played["timesteps"], played["results"], strict=True)
    ]
    return {"steps": int(steps), "updates": found.updates, "minutes": round(minutes, 1), "curve": points}


def summary(played: Evaluation) -> dict[str, Any]:
    found = stats.summary(played.returns, np.random.default_rng(0))
    return {"mean": found.mean, "std": found.std, "ci_low": found.ci_low, "ci_high": found.ci_high}


def show(agent: Agent) -> None:
    training = agent.training
    final = training["return"]
    where = f"[{final['ci_low']:.1f}, {final['ci_high']:.1f}]"
    print(f"{agent.algo} on {agent.env_id}: {final['mean']:.1f} {where} after {training['minutes']} min")
    for row in agent.ptq:
        kernels = "measured" if row["measured"] else "simulated"
        print(f"  {row['precision']:5} {row['mode']:7} {row['mean']:6.1f} E {row['error_pct']:6.1f} % {kernels}")
    for bits, row in agent.qat.items():
        print(f"  QAT {bits} {row['return']['mean']:6.1f} E {row['error_pct']:6.1f} % after {row['minutes']} min")


def named(what: str, game: str) -> str:
    """Of a row, or of a file without its suffix: Pong's go without the game."""
    return what if game == "Pong" else f"{what}-{game}"


def draw(out: Path, game: str) -> None:
    """The learning curves of the game's agents in `out`, in one figure."""
    rows = {row["name"]: row for row in read("atari", "training", root=out)}
    with style.look():
        figure, (axes,) = style.panels(1, height=3.2)
        for colour, algo in zip(style.SERIES, ("dqn", "ppo", "a2c"), strict=False):
            if (name := named(algo, game)) not in rows:
                continue
            curve, final = rows[name]["curve"], rows[name]["return"]
            ends = f"{final['mean']:.1f} [{final['ci_low']:.1f}, {final['ci_high']:.1f}] at the end"
            steps = [point["steps"] / 1e6 for point in curve]
            axes.plot(steps, [point["mean"] for point in curve], color=colour, label=f"{algo}: {ends}")
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set(xlabel="million environment steps", ylabel="points")
        axes.set_title(f"{game} from pixels: running evaluations, one seed each")
        axes.legend()
    folder = out / "atari" / here()
    folder.mkdir(parents=True, exist_ok=True)
    style.save(figure, folder / f"{named('curves', game)}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="algorithms; default: all")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which it stops; default: never")
    parser.add_argument("--game", default="Pong", help="as in PongNoFrameskip-v4")
    parser.add_argument("--learner-dtype", default="fp32", help="that the agent is trained in; fine-tuning is in fp32")
    parser.add_argument("--episodes", type=int, default=20, help="games of every row")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the games")
    parser.add_argument("--threads", type=int, help="of the learner; default: as quarl train chooses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agents", metavar="FOLDER", type=Path, default=Path("runs/atari"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    clock = Clock(min(options.minutes, 60 * 24 * 365))
    for algo in options.only or STEPS:
        agent = Agent(algo, options)
        try:
            agent.measure(clock)
        except Over:
            print("the time is over: the same command goes on", flush=True)
            break
        finally:
            if agent.training is not None:
                show(agent)
                draw(options.out, options.game)


if __name__ == "__main__":
    main()
