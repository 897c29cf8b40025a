"""The evaluator of a run, which plays episodes with the learner's policy and keeps the best agent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl import engines, qat, stats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.config import TrainConfig
from quarl.config.learner_options import LearnerOptions
from quarl.envs.checked import BrokenEnvironmentError, held
from quarl.envs.environment import Environment
from quarl.envs.seeds import Stream, episode_seed
from quarl.errors import RAISED, QuarlError, in_one_line
from quarl.evaluation import Evaluation, evaluate
from quarl.files import Dispensable
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT
from quarl.readers.extract import from_model
from quarl.readers.zoo import samples_actions
from quarl.runs.checkpoint import give_random, take_random
from quarl.runs.folder import RunFolder

NUMBERS = ("mean", "std", "ci_low", "ci_high", "returns")
COMPARED = ("mean", "ci_low", "ci_high", "measured", "returns")
"""Fields of the last evaluation that rows also have for the integers."""


class Evaluator:
    """Player of the episodes in one run's evaluations."""

    def __init__(self, config: LearnerOptions, say: Callable[[str], None]) -> None:
        self.config, self._say, self._files = config, say, Dispensable(say)

    def play(self, policy: QuantizedPolicy, **settings: Any) -> Evaluation:
        """Play the episodes; if an environment raises, play them once more in new environments.

        `settings` are keywords of `evaluate`.
        """
        try:
            return evaluate(policy, **settings)
        except Exception as error:  # simulators raise exceptions of any type
            if isinstance(error, QuarlError) and not isinstance(error, BrokenEnvironmentError):
                raise
            self._say(f"an evaluation restarts ({in_one_line(error)})")
            return evaluate(policy, **settings)


class BestEvaluator(Evaluator):
    """Evaluations of `quarl train` in order; the best agent is kept.

    All running evaluations play the same development episodes, so their returns are comparable. The last evaluation has
    fresh episodes that no choice was based on. Evaluations draw from none of training's random generators.
    """

    config: TrainConfig

    def __init__(
        self, config: TrainConfig, environment: Environment, folder: Callable[[], RunFolder], say: Callable[[str], None]
    ) -> None:
        """Prepare the evaluations.

        Args:
            config: Options of the run.
            environment: Environment in which episodes are played.
            folder: Returns the run's folder; called when there is something to write.
            say: Receives warnings, one line each.
        """
        super().__init__(config, say)
        self.environment, self._folder, self._best_files = environment, folder, Dispensable(say)
        self.entries: list[tuple[int, Array, Array]] = []
        """Environment steps, returns and lengths of each evaluation."""
        self.best: tuple[bool, float, int] | None = None
        """(has integers, mean return, environment steps) of the best agent so far, which is the one in the folder.

        An agent trained with quantization ranks above every earlier one: it is the purpose of the run.
        """
        self.learners: gymnasium.Env[Any, Any] | None = None
        """The learner's environment, to play in if no second one can be made while it is open."""
        self._is_alone: bool | None = None

    def resume(self, timesteps: int) -> None:
        """Continue after the evaluations up to that step; the best agent in the folder stays, even if it is newer."""
        self.entries = [entry for entry in self._folder().read_evaluations() if entry[0] <= timesteps]
        self.best = self._folder().read_best()

    def look(self, model: BaseAlgorithm) -> tuple[QuantizedPolicy, Evaluation] | None:
        """Play the evaluation episodes with the present model and return the policy and its evaluation, for `keep`.

        Return None if an environment raised twice: the evaluation is skipped and the run continues.
        """
        with undisturbed(model):
            policy = self.integers(model) if qat.is_ready(model) else self.exact(model)
            try:
                played = self._play(policy, "development")
            except Exception as error:  # simulators raise exceptions of any type
                steps = model.num_timesteps
                self._say(f"skipped the evaluation after {steps:,} steps ({in_one_line(error)}); training continues")
                return None
        return policy, played

    def keep(self, model: BaseAlgorithm, policy: QuantizedPolicy, played: Evaluation) -> float:
        """Write evaluations.npz and, if the agent is the best so far, best_model.zip.

        Args:
            model: Model that was evaluated.
            policy: The policy that played.
            played: Its evaluation.

        Returns:
            The mean return.
        """
        self.entries.append((model.num_timesteps, played.returns, played.lengths))
        folder, mean = self._folder(), float(played.returns.mean())
        self._files.write(lambda: folder.write_evaluations(self.entries))
        ready = qat.is_ready(model)
        if not self._improves(ready, mean, model.num_timesteps):
            return mean
        if not self._best_files.write(lambda: folder.write_best(model, mean, policy if ready else None)):
            self.best = None  # the next agent that can be written becomes the best
        return mean

    def _improves(self, quantised: bool, mean: float, step: int) -> bool:
        """Return True, and remember the agent at `step` as the best, if it is the best so far."""
        if self.best is not None and (quantised, mean) <= self.best[:2]:
            return False
        self.best = quantised, mean, step
        return True

    def conclude(self, model: BaseAlgorithm, integers: QuantizedPolicy | None) -> dict[str, Any]:
        """Evaluate the float policy, and the integers it was trained for, on the same fresh episodes.

        Args:
            model: The trained model.
            integers: The policy in integers; None without quantization-aware training.

        Returns:
            The evaluation's columns of the run's row.
        """
        if not self.config.eval_episodes:
            return {"episodes": 0, **dict.fromkeys(NUMBERS), **dict.fromkeys(f"{name}_quantised" for name in COMPARED)}
        with undisturbed(model):
            summary = _summary(self._play(self.exact(model), "evaluation"))
            compared: dict[str, Any] = {}
            if integers is not None:
                played = self._play(integers, "evaluation")
                compared = {**_summary(played), "measured": played.measured}
        return {**summary, **{f"{name}_quantised": compared.get(name) for name in COMPARED}}

    def exact(self, model: BaseAlgorithm) -> QuantizedPolicy:
        """Return the float32 policy."""
        return quantize(self._at_home(from_model(model)), EXACT)

    def integers(self, model: BaseAlgorithm) -> QuantizedPolicy:
        """Return the policy on the grids that it was trained with."""
        policy = self._at_home(qat.quantized_policy(model))
        assert isinstance(policy, QuantizedPolicy)
        return policy

    def _at_home(self, policy: Policy) -> Policy:
        """Return the policy with the environment of this run in its provenance."""
        environment = self.environment
        home = replace(
            policy.provenance,
            env_id=environment.env_id,
            env_kwargs=dict(environment.env_kwargs),
            wrappers=environment.wrappers,
            stochastic=samples_actions(self.config.algo, environment.env_id),
        )
        return replace(policy, provenance=home)

    def _play(self, policy: QuantizedPolicy, stream: Stream) -> Evaluation:
        return self.play(
            policy,
            episodes=self.config.eval_episodes,
            seed=self.config.seed,
            engine=engines.load_fitting(policy).name,
            stream=stream,
            environment=replace(self.environment, lent=self._borrowed(policy)),
        )

    @property
    def has_borrowed(self) -> bool:
        """True if evaluations are played in the learner's environment, which has another state afterwards."""
        return self.learners is not None and self._is_alone is True

    def _borrowed(self, policy: Policy) -> gymnasium.Env[Any, Any] | None:
        """Return the learner's environment if no second one can be made; the first evaluation tries to make one."""
        if self.learners is not None and self._is_alone is None:
            try:
                with held(partial(self.environment.make_for, policy)) as env:
                    env.reset(seed=episode_seed("probe", self.config.seed, 0))
                self._is_alone = False
            except RAISED as error:  # simulators raise exceptions of any type
                self._is_alone = True
                alone = f"no second environment can be made ({in_one_line(error)})"
                self._say(f"{alone}: evaluations are played in the learner's, whose episodes they end")
        return self.learners if self._is_alone else None


@contextlib.contextmanager
def undisturbed(model: BaseAlgorithm) -> Iterator[None]:
    """Restore the process's random generators after the block."""
    facts, arrays = take_random(model)
    try:
        yield
    finally:
        give_random(model, facts, arrays)


def _summary(played: Evaluation) -> dict[str, Any]:
    summary = {**asdict(stats.summary(played.returns, np.random.default_rng(0))), "returns": played.returns.tolist()}
    return {name: summary[name] for name in ("episodes", *NUMBERS)}
