"""The folder of one run. `quarl train` uses the zoo's layout, in which its scripts and QuaRL's readers find an agent.

logs/ppo/CartPole-v1_1/CartPole-v1.zip        the newest agent        best_model.zip    the best in evaluations
                      /CartPole-v1.quarl      in integers (QAT)       best_model_vecnormalize.pkl   its statistics
                      /CartPole-v1/config.yml, args.yml, vecnormalize.pkl
                      /checkpoint-0000000620.safetensors              best_model.yml  its mean return and steps
                      /command.txt                                    evaluations.npz   as EvalCallback writes it
                      /report.html, curve.png                         metrics.jsonl   return and clock over the steps

`quarl actorq` writes to the folder of -o: model.zip and args.yml are beside the checkpoints.
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
from quarl.config.learner_options import LearnerOptions, options_of, yaml_values
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
"""Attempts to take the next free number, which other runs may take first."""
BEST = "best_model"
PATCHED = ("train", "_sample_action", CLOCK)
"""Attributes that training adds to a model and that are not saved with it."""


class RunFolder:
    """The files of one run; each appears complete or not at all."""

    def __init__(self, path: Path, env_id: str | None = None) -> None:
        """Name the files; env_id: environment of a run in the zoo's layout, None for another folder."""
        self.path = path
        name = "model" if env_id is None else find.folder_name(env_id)
        self.settings = path if env_id is None else path / name
        self.options, self.hyperparameters = self.settings / "args.yml", self.settings / "config.yml"
        self.agent = path / f"{name}.zip"
        self.integers = path / f"{name}.quarl"
        self.metrics = path / "metrics.jsonl"

    @classmethod
    def new(cls, folder: Path, algo: str, env_id: str) -> RunFolder:
        """Make the folder of a new run with the next free number.

        Args:
            folder: Folder of all logs.
            algo: Algorithm of the run.
            env_id: Environment of the run.

        Returns:
            The run's folder.

        Raises:
            QuarlError: The folder cannot be made.
        """
        runs = folder / algo
        try:
            runs.mkdir(parents=True, exist_ok=True)
            number = max(find.numbered_runs(runs, env_id), default=0) + 1
            for path in (runs / f"{find.folder_name(env_id)}_{number + k}" for k in range(ATTEMPTS)):
                try:
                    path.mkdir()
                except FileExistsError:  # another run has taken the number
                    continue
                run = cls(path, env_id)
                run.settings.mkdir()
                return run
        except OSError as error:
            raise QuarlError(f"cannot write to {folder}: {error.strerror}; choose another with -f") from None
        raise QuarlError(f"cannot make a run in {runs}: other runs took its number each time; choose another with -f")

    @classmethod
    def latest(cls, folder: Path, algo: str, env_id: str) -> RunFolder:
        """Return the newest run.

        Args:
            folder: Folder of all logs.
            algo: Algorithm of the run.
            env_id: Environment of the run.

        Returns:
            The run's folder, which has at least one checkpoint.

        Raises:
            NothingSavedError: There is no run, or the newest one has no checkpoint.
        """
        runs = folder / algo
        numbered = find.numbered_runs(runs, env_id)
        if not numbered:
            raise NothingSavedError(f"no run of {algo} on {env_id} in {folder} to resume; start without --resume")
        run = cls(numbered[max(numbered)], env_id)
        if not run.checkpoints():
            raise NothingSavedError(f"no checkpoint in {run.path}; start without --resume")
        return run

    def describe(self, config: LearnerOptions, written: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Write args.yml and, for a new run, command.txt, which repeats it.

        Args:
            config: Options of the run.
            written: Hyper-parameters for config.yml, which are not options.
            **options: Values that replace those of `config`.
        """
        if not config.resume:
            write_bytes(config.command_line().encode() + b"\n", self.path / "command.txt")
        if written is not None:
            self._write_yaml(written, self.hyperparameters)
        self._write_yaml({**options_of(config), **options}, self.options)

    def _write_yaml(self, values: Mapping[str, Any], path: Path) -> None:
        write_bytes(yaml.safe_dump(yaml_values(dict(values)), sort_keys=True).encode(), path)

    def checkpoints(self) -> list[str]:
        """Return the names of the existing checkpoints, oldest first."""
        return sorted(path.name for path in self.path.glob("checkpoint-*"))

    def read_args(self) -> dict[str, Any]:
        """Return the options by their names in the command's configuration."""
        return read_yaml(self.options)

    def write_agent(self, model: BaseAlgorithm, name: str | None = None, exclude: Sequence[str] = ()) -> Path:
        """Write the model's zip and its observation statistics beside it.

        An agent under another name has its own statistics, which stay fixed while the run continues.

        Args:
            model: Model to write.
            name: File name of the zip; None for the newest agent's.
            exclude: Attributes that training added to the model.

        Returns:
            The path of the zip.

        Raises:
            CheckpointError: The file cannot be written.
            QuarlError: A weight is NaN or infinite.
        """
        path = checkpoint.export(self.path, model, name or self.agent.name, exclude=(*PATCHED, *exclude))
        shared = [self.settings / "vecnormalize.pkl"] if self.settings != self.path else []
        own = [own_statistics(path)] if not shared or path != self.agent else []
        for statistics in (*shared, *own):
            checkpoint.export_statistics(statistics, model)
        return path

    def write_best(self, model: BaseAlgorithm, mean: float, integers: QuantizedPolicy | None) -> None:
        """Write the best agent, then its record. If the process is killed between the two, the agent has no record.

        Args:
            model: The best agent's model.
            mean: Its mean return.
            integers: Its policy in integers, if it was trained with quantization.
        """
        facts, quantised = self.path / f"{BEST}.yml", self.path / f"{BEST}.quarl"
        facts.unlink(missing_ok=True)
        self.write_agent(model, f"{BEST}.zip")
        quantised.unlink(missing_ok=True)
        if integers is not None:
            self.write_integers(integers, quantised.name)
        self._write_yaml({"mean": mean, "timesteps": model.num_timesteps, "quantised": integers is not None}, facts)

    def read_best(self) -> tuple[bool, float, int] | None:
        """Return (has integers, mean return, environment steps) from `write_best`; None if they are unknown."""
        path = self.path / f"{BEST}.yml"
        if not path.exists():
            return None
        facts = read_yaml(path)
        try:
            return bool(facts["quantised"]), float(facts["mean"]), int(facts["timesteps"])
        except (KeyError, TypeError, ValueError):
            raise QuarlError(f"{path} is malformed; remove the file to resume without it") from None

    def write_integers(self, policy: QuantizedPolicy, name: str | None = None) -> None:
        """Write the policy that quantization-aware training produced."""
        artifact.write(policy, self.path / (name or self.integers.name))

    def write_evaluations(self, entries: Sequence[tuple[int, Array, Array]]) -> None:
        """Write evaluations.npz from steps, returns and lengths.

        The arrays are timesteps [K], results and ep_lengths [K, episodes].
        """
        timesteps, returns, lengths = (np.array(column) for column in zip(*entries, strict=True))
        buffer = io.BytesIO()
        np.savez(buffer, timesteps=timesteps, results=returns, ep_lengths=lengths)
        write_bytes(buffer.getvalue(), self.path / "evaluations.npz")

    def read_evaluations(self) -> list[tuple[int, Array, Array]]:
        """Return the entries from `write_evaluations`; an empty list if there is no file yet."""
        path = self.path / "evaluations.npz"
        if not path.exists():
            return []
        arrays = read_npz(read_bytes(path), str(path))
        try:
            steps, returns, lengths = arrays["timesteps"], arrays["results"], arrays["ep_lengths"]
            if steps.ndim == 1:
                return list(zip(steps.tolist(), returns, lengths, strict=True))
        except (KeyError, TypeError, ValueError):  # an array is missing, is a scalar or has another length
            pass
        raise QuarlError(f"{path} is malformed; remove the file to resume without it")
