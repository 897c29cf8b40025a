"""One run's folder: of `quarl train` in the zoo's layout, by which its own scripts and QuaRL's readers find an agent.

logs/ppo/CartPole-v1_1/CartPole-v1.zip        the newest agent        best_model.zip    the best in evaluations
                      /CartPole-v1.quarl      in integers (QAT)       best_model_vecnormalize.pkl   its statistics
                      /CartPole-v1/config.yml, args.yml, vecnormalize.pkl
                      /checkpoint-0000000620.safetensors              best_model.yml  when and how good it was
                      /command.txt                                    evaluations.npz   as EvalCallback writes it
                      /report.html, curve.png                         metrics.jsonl   return and clock over the steps

Of `quarl actorq` it is the one that -o names: model.zip and args.yml lie beside the checkpoints.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl.algorithms.clocks import CLOCK
from quarl.arrays import Array
from quarl.config.learner_options import LearnerOptions, options_of, plain
from quarl.errors import NothingSavedError, QuarlError
from quarl.files import write_bytes
from quarl.inert.npz import read_npz
from quarl.inert.yaml import read_yaml
from quarl.inert.zip import read_bytes
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.readers import find
from quarl.readers.statistics import own_statistics
from quarl.runs import checkpoint

ATTEMPTS = 100
"""Runs that may take a number in the moment before we do."""
BEST = "best_model"
PATCHED = ("train", "_sample_action", CLOCK)
"""Attributes that training puts on a model, which are not saved with it."""


class RunFolder:
    """The files of one run; every one appears whole or not at all."""

    def __init__(self, path: Path, env_id: str | None = None) -> None:
        """env_id: of a run in the zoo's layout."""
        self.path = path
        name = "model" if env_id is None else find.folder_name(env_id)
        self.settings = path if env_id is None else path / name
        self.options, self.hyperparameters = self.settings / "args.yml", self.settings / "config.yml"
        self.agent = path / f"{name}.zip"
        self.integers = path / f"{name}.quarl"
        self.metrics = path / "metrics.jsonl"

    @classmethod
    def new(cls, folder: Path, algo: str, env_id: str) -> RunFolder:
        """The run with the next free number."""
        runs = folder / algo
        try:
            runs.mkdir(parents=True, exist_ok=True)
            number = max(find.numbered_runs(runs, env_id), default=0) + 1
            for path in (runs / f"{find.folder_name(env_id)}_{number + k}" for k in range(ATTEMPTS)):
                try:
                    path.mkdir()
                except FileExistsError:  # another run has just taken it
                    continue
                run = cls(path, env_id)
                run.settings.mkdir()
                return run
        except OSError as error:
            raise QuarlError(f"cannot write to {folder}: {error.strerror}; choose another with -f") from None
        raise QuarlError(f"{runs} gets runs faster than one can be made; choose another folder with -f")

    @classmethod
    def latest(cls, folder: Path, algo: str, env_id: str) -> RunFolder:
        """The newest run; NothingSavedError where there is none, or where it has no checkpoint."""
        runs = folder / algo
        numbered = find.numbered_runs(runs, env_id)
        if not numbered:
            raise NothingSavedError(f"no run of {algo} on {env_id} in {folder} to resume; start without --resume")
        run = cls(numbered[max(numbered)], env_id)
        if not run.checkpoints():
            raise NothingSavedError(f"no checkpoint in {run.path}; start without --resume")
        return run

    def describe(self, config: LearnerOptions, written: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Writes args.yml and, of a new run, command.txt, which repeats it.

        written: hyper-parameters that are no options, for config.yml. options: in place of the configuration's.
        """
        if not config.resume:
            write_bytes(config.command_line().encode() + b"\n", self.path / "command.txt")
        if written is not None:
            self._write_yaml(written, self.hyperparameters)
        self._write_yaml({**options_of(config), **options}, self.options)

    def _write_yaml(self, values: Mapping[str, Any], path: Path) -> None:
        write_bytes(yaml.safe_dump(plain(dict(values)), sort_keys=True).encode(), path)

    def checkpoints(self) -> list[str]:
        """Names of those that are there, oldest first."""
        return sorted(path.name for path in self.path.glob("checkpoint-*"))

    def read_args(self) -> dict[str, Any]:
        """The options, by their names in the verb's configuration."""
        return read_yaml(self.options)

    def write_agent(self, model: BaseAlgorithm, name: str | None = None, exclude: Sequence[str] = ()) -> Path:
        """The model's zip, with its observation statistics beside it; raises as `checkpoint.save` does.

        An agent of another name has statistics of its own, which move on no more while the run does.
        exclude: attributes of the model that are not its own.
        """
        path = checkpoint.export(self.path, model, name or self.agent.name, exclude=(*PATCHED, *exclude))
        if self.settings != self.path:
            checkpoint.export_statistics(self.settings / "vecnormalize.pkl", model)
        if self.settings == self.path or path != self.agent:
            checkpoint.export_statistics(own_statistics(path), model)
        return path

    def write_best(self, model: BaseAlgorithm, mean: float, integers: QuantizedPolicy | None) -> None:
        """Write the best agent, then its record. If the process is killed between the two, the agent has no record."""
        facts, quantised = self.path / f"{BEST}.yml", self.path / f"{BEST}.quarl"
        facts.unlink(missing_ok=True)
        self.write_agent(model, f"{BEST}.zip")
        quantised.unlink(missing_ok=True)
        if integers is not None:
            self.write_integers(integers, quantised.name)
        self._write_yaml({"mean": mean, "timesteps": model.num_timesteps, "quantised": integers is not None}, facts)

    def read_best(self) -> tuple[bool, float, int] | None:
        """Whether there are integers, mean return and steps of what `write_best` wrote; None: not known."""
        path = self.path / f"{BEST}.yml"
        if not path.exists():
            return None
        facts = read_yaml(path)
        try:
            return bool(facts["quantised"]), float(facts["mean"]), int(facts["timesteps"])
        except (KeyError, TypeError, ValueError):
            raise QuarlError(f"{path} is malformed; remove the file to resume without it") from None

    def write_integers(self, policy: QuantizedPolicy, name: str | None = None) -> None:
        """The policy that quantization-aware training was for."""
        artifact.write(policy, self.path / (name or self.integers.name))

    def write_evaluations(self, entries: Sequence[tuple[int, Array, Array]]) -> None:
        """evaluations.npz, of steps, returns and lengths: timesteps [K], results and ep_lengths [K, episodes]."""
        timesteps, returns, lengths = (np.array(column) for column in zip(*entries, strict=True))
        buffer = io.BytesIO()
        np.savez(buffer, timesteps=timesteps, results=returns, ep_lengths=lengths)
        write_bytes(buffer.getvalue(), self.path / "evaluations.npz")

    def read_evaluations(self) -> list[tuple[int, Array, Array]]:
        """What `write_evaluations` wrote; empty where it has not yet."""
        path = self.path / "evaluations.npz"
        if not path.exists():
            return []
        arrays = read_npz(read_bytes(path), str(path))
        try:
            steps, returns, lengths = arrays["timesteps"], arrays["results"], arrays["ep_lengths"]
            if steps.ndim == 1:
                return list(zip(steps.tolist(), returns, lengths, strict=True))
        except (KeyError, TypeError, ValueError):  # an array is missing, is a single number or of another length
            pass
        raise QuarlError(f"{path} is malformed; remove the file to resume without it")
