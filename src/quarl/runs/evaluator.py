"""The evaluator of a run: plays episodes with what its learner would act with, and keeps the best agent."""

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
"""Of the last evaluation, and of the integers in it."""


class Evaluator:
    """Plays the episodes of one run's evaluations."""

    def __init__(self, config: LearnerOptions, say: Callable[[str], None]) -> None:
        self.config, self._say, self._files = config, say, Dispensable(say)

    def play(self, policy: QuantizedPolicy, **settings: Any) -> Evaluation:
        """Play the episodes, and again in new environments if one raises; settings: keywords of `evaluate`."""
        try:
            return evaluate(policy, **settings)
        except Exception as error:  # whatever a simulator raises
            if isinstance(error, QuarlError) and not isinstance(error, BrokenEnvironmentError):
                raise
            self._say(f"an evaluation begins again ({in_one_line(error)})")
            return evaluate(policy, **settings)


class BestEvaluator(Evaluator):
    """Evaluations of `quarl train`, in order, of which the best agent is kept.

    Running evaluations all play the same development episodes, so that they compare; the last word has episodes that
    nothing was chosen by. Nothing that training draws is drawn here.
    """

    config: TrainConfig

    def __init__(
        self, config: TrainConfig, environment: Environment, folder: Callable[[], RunFolder], say: Callable[[str], None]
    ) -> None:
        """folder: asked for when there is something to write."""
        super().__init__(config, say)
        self.environment, self._folder, self._best_files = environment, folder, Dispensable(say)
        self.entries: list[tuple[int, Array, Array]] = []
        """Environment steps, returns and lengths of each evaluation."""
        self.best: tuple[bool, float, int] | None = None
        """(in integers, mean return, environment steps) of the best agent so far, which is the one in the folder. What
        was trained with quantization is better than anything before: the run is for that."""
        self.learners: gymnasium.Env[Any, Any] | None = None
        """The learner's environment while it lives, to play in where no second one can be made beside it."""
        self._is_alone: bool | None = None

    def resume(self, timesteps: int) -> None:
        """Goes on behind the evaluations up to that step; what was best after it is in the folder, and stays so."""
        self.entries = [entry for entry in self._folder().read_evaluations() if entry[0] <= timesteps]
        self.best = self._folder().read_best()

    def look(self, model: BaseAlgorithm) -> tuple[QuantizedPolicy, Evaluation] | None:
        """The episodes that the model plays now, for `keep`.

        None where an environment raised and raised again: that costs the evaluation and not the run.
        """
        with undisturbed(model):
            policy = self.integers(model) if qat.is_ready(model) else self.exact(model)
            try:
                played = self._play(policy, "development")
            except Exception as error:  # whatever a simulator raises
                steps = model.num_timesteps
                self._say(f"the evaluation after {steps:,} steps is left out ({in_one_line(error)}); training goes on")
                return None
        return policy, played

    def keep(self, model: BaseAlgorithm, policy: QuantizedPolicy, played: Evaluation) -> float:
        """The mean return; evaluations.npz and, where it is the best so far, best_model.zip are written."""
        self.entries.append((model.num_timesteps, played.returns, played.lengths))
        folder, mean = self._folder(), float(played.returns.mean())
        self._files.write(lambda: folder.write_evaluations(self.entries))
        ready = qat.is_ready(model)
        if not self._improves(ready, mean, model.num_timesteps):
            return mean
        if not self._best_files.write(lambda: folder.write_best(model, mean, policy if ready else None)):
            self.best = None  # the next that can be written is
        return mean

    def _improves(self, quantised: bool, mean: float, step: int) -> bool:
        """Whether the agent at `step` is the best so far, which it is from then on."""
        if self.best is not None and (quantised, mean) <= self.best[:2]:
            return False
        self.best = quantised, mean, step
        return True

    def conclude(self, model: BaseAlgorithm, integers: QuantizedPolicy | None) -> dict[str, Any]:
        """Return of the float policy, and of the integers it was trained for, on the same fresh episodes."""
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
        """The float32 policy."""
        return quantize(self._at_home(from_model(model)), EXACT)

    def integers(self, model: BaseAlgorithm) -> QuantizedPolicy:
        """The policy on the grids that it was trained with."""
        policy = self._at_home(qat.quantized_policy(model))
        assert isinstance(policy, QuantizedPolicy)
        return policy

    def _at_home(self, policy: Policy) -> Policy:
        """The policy, knowing how its environment is made."""
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
            env=replace(self.environment, lent=self._borrowed(policy)),
        )

    @property
    def has_borrowed(self) -> bool:
        """Whether evaluations are played in the learner's environment, which has another state then."""
        return self.learners is not None and self._is_alone is True

    def _borrowed(self, policy: Policy) -> gymnasium.Env[Any, Any] | None:
        """The learner's environment where no second one can be made beside it, which the first evaluation finds out."""
        if self.learners is not None and self._is_alone is None:
            try:
                with held(partial(self.environment.make_for, policy)) as env:
                    env.reset(seed=episode_seed("probe", self.config.seed, 0))
                self._is_alone = False
            except RAISED as error:  # whatever a simulator raises
                self._is_alone = True
                alone = f"no second environment can be made ({in_one_line(error)})"
                self._say(f"{alone}: evaluations are played in the learner's, whose episodes they end")
        return self.learners if self._is_alone else None


@contextlib.contextmanager
def undisturbed(model: BaseAlgorithm) -> Iterator[None]:
    """Whatever is drawn inside: the process's generators go on where they were."""
    facts, arrays = take_random(model)
    try:
        yield
    finally:
        give_random(model, facts, arrays)


def _summary(played: Evaluation) -> dict[str, Any]:
    summary = {**asdict(stats.summary(played.returns, np.random.default_rng(0))), "returns": played.returns.tolist()}
    return {name: summary[name] for name in ("episodes", *NUMBERS)}
