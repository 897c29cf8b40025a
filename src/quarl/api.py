"""What a Python user holds: `quarl.load(path)` gives an Agent, which quantises, acts, plays and saves."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import gymnasium
from numpy.typing import ArrayLike

from quarl import engines, evaluation
from quarl import export as exporting
from quarl.arguments import arranged, check, checks_keywords, policy_rows
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import Engine
from quarl.envs.environment import EnvironmentKeywords, in_environment
from quarl.envs.masks import allowed, is_masked
from quarl.envs.rollout import Episode
from quarl.envs.seeds import Stream
from quarl.errors import QuarlError, UnsupportedError, extras, note
from quarl.files import write_bytes
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Policy, QuantizedPolicy, in_words, is_quantized
from quarl.policy.inputs import layout
from quarl.quant.spec import EXACT, Mode, QuantSpec
from quarl.readers.load import read
from quarl.readers.normalizer import outside, sentence
from quarl.readers.observation import observe
from quarl.readers.plain_spaces import action_head, from_live
from quarl.specs import DistillSpec

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from torch import nn

    from quarl.distillation.rounds import Snapshot

KEPT_ENGINES = 4
"""Of an agent, one for each batch size that it was asked for lately."""
OWN = ("", ".safetensors", ".quarl")
"""Suffixes of QuaRL's artefact; "": a name without one stays as it is."""


class Agent:
    """A trained policy, float or quantised, with what one does with it.

    `quarl.load` makes one of a file, `from_sb3` of a live Stable-Baselines3 model, `from_module` of a network of your
    own, `quantize` of another agent. It never changes; threads may share it, and processes may be sent one.

    >>> quarl.load("CartPole-v1.zip")
    Agent(dqn CartPole-v1, fp32, 4-256-256-2, 67,072 weights)
    """

    policy: Policy
    """The graph with its weights, the meaning of its output and the environment that it was trained on."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._engines: dict[tuple[str, int], Engine] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_model(cls, model: BaseAlgorithm) -> Agent:
        """The agent of a live model of Stable-Baselines3, sb3-contrib or D4PG, as it is now: training may go on.

        Statistics of its VecNormalize and its environment come along; a model of quantization-aware training comes in
        the integers that it acts in. UnsupportedError names what has no counterpart.

        >>> quarl.from_sb3(stable_baselines3.PPO("MlpPolicy", "CartPole-v1"))
        Agent(ppo CartPole-v1, fp32, 4-64-64-2, 4,480 weights)
        """
        from quarl.readers.extract import from_model  # here: it imports torch, which files do without

        return cls(from_model(model, trained=True))

    @classmethod
    @checks_keywords
    def from_module(
        cls,
        module: nn.Module,
        observation: tuple[int, ...] | gymnasium.Space[Any],
        head: ActionHead | gymnasium.Space[Any],
        *,
        observation_dtype: Literal["float32", "uint8"] = "float32",
        output: int | None = None,
    ) -> Agent:
        """The agent whose network is `module`, of dense, convolution, pooling, norm and activation layers.

        UnsupportedError names a layer that has no counterpart.

        observation: the space of the observations, or the shape of one, images with their channels first; of spaces
        other than a Box the module reads rows, as `gymnasium.spaces.flatten` makes them.
        head: the space of the actions, of which the module gives the scores or the values; or an ActionHead.
        output: place, from 0, of the policy's output among several tensors that the module returns.

        >>> quarl.from_module(torch.nn.Linear(4, 2), observation=(4,), head=gymnasium.spaces.Discrete(2))
        Agent(fp32, 4-2, 8 weights)
        """
        from quarl.readers.extract import from_module

        if not isinstance(head, ActionHead):
            head = action_head(from_live(head, "head"), "head", zero_based=False)
        if isinstance(observation, gymnasium.Space):
            fields = observe(from_live(observation, "observation"), "observation").fields
        else:
            fields = {"observation_shape": observation, "observation_dtype": observation_dtype}
        return cls(from_module(module, **fields, head=head, output=output))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.policy,)  # engines and locks are made anew, in whichever process

    def __repr__(self) -> str:
        return f"Agent({in_words(self.policy)})"

    @checks_keywords
    def quantize(
        self,
        precision: str | int = "int8",
        *,
        observations: ArrayLike | dict[str, Array] | None = None,
        scheme: str = "default",
        mode: Mode = "dynamic",
        seed: int = 0,
        **where: Unpack[EnvironmentKeywords],
    ) -> Agent:
        """A new agent in that precision: "int8", "int4", "int4e8" (8 bits in the first and the last layers), "fp16",
        "w4a8", or a number of bits.

        QuarlError for an unknown precision or scheme, and for an agent that is quantized already: asked for the
        precision that it has, it is returned as it is.

        observations: raw calibration observations [N, ...], as the environment gives them; None records the
        policy's own episodes in the environment it was trained on, or `env_id`, from calibration seeds.
        scheme: how weights become codes.
        mode: activations are quantised per row at run time, or on grids calibrated beforehand.
        env_kwargs, wrappers, frame_stack, max_episode_steps: as `evaluate` takes them; the new agent knows them.
        env: the environment to play in, as of `evaluate`.

        >>> agent.quantize("int8")
        Agent(dqn CartPole-v1, int8 dynamic, 4-256-256-2, 67,072 weights)
        """
        if is_quantized(self.policy):
            own = self.policy.spec
            if own.is_called(precision) and scheme in ("default", own.scheme.name) and mode in ("dynamic", own.mode):
                note(f"the policy is {own.in_words} already: its codes and grids are kept")
                return self
            raise QuarlError(f"this policy is {own.in_words} already; quantize the fp32 one")
        spec = QuantSpec.parse(precision, scheme=scheme, mode=mode)
        policy, environment = in_environment(self.policy, **where)
        if observations is None and spec.needs_observations:
            observations = evaluation.record(policy, seed=seed, environment=environment)
        given = None if observations is None else arranged(policy, observations)[0]
        if given is not None and spec.needs_observations:
            evaluation.check_recorded(given)
        return Agent(quantize(policy, spec, given))

    @checks_keywords
    def distill(
        agent: Agent | str | os.PathLike[str],
        precision: str | int = 4,
        *,
        observations: ArrayLike | dict[str, Array] | None = None,
        mode: Mode = "dynamic",
        rounds: int = DistillSpec.rounds,
        updates: int = DistillSpec.updates,
        states: int = DistillSpec.states,
        validation: int = DistillSpec.validation,
        margin: float = DistillSpec.margin,
        budget: int | str | None = None,
        seed: int = 0,
        **where: Unpack[EnvironmentKeywords],
    ) -> Distilled:
        """The agent in 2 to 8 bits, which learned what it does in float, and the snapshots of which it is the best.

        What `quarl distill` does, whose options explain the keywords. QuarlError as of `quantize`.

        observations: recorded ones [N, ...] in place of an environment: no other states are learned from, and snapshots
        have the error of their actions on the last tenth in place of returns.
        validation: episodes of a look at a snapshot.
        margin: loss of return, in percent of fp32's: a snapshot that is shown to lose less ends it.
        budget: updates, or minutes, as in "10m".
        env: the environment to play in, as of `evaluate`.

        >>> agent.distill(2, rounds=1, updates=50, validation=10).agent
        Agent(dqn CartPole-v1, int2e8 dynamic, 4-256-256-2, 67,072 weights)
        """
        with extras("distill"):  # here: it imports Agent, too
            from quarl.distillation import rounds as recipes
            from quarl.distillation.validation import Validation

        policy = agent_of(agent, where.get("frame_stack")).policy
        if is_quantized(policy):
            raise QuarlError(f"this policy is {policy.spec.precision} already; distil the fp32 one")
        told: Any = {"rounds": rounds, "updates": updates, "states": states, "validation": validation}
        told |= {"bits": (str(precision),), "mode": mode, "margin": margin, "seed": seed}
        recipe = DistillSpec(budget=None if budget is None else str(budget), **told)
        check(recipe, {"bits": "precision"})
        policy, environment = in_environment(policy, **where)
        given = None if observations is None else policy_rows(policy, observations)[0]
        (spec,), looks = recipe.specs(), Validation(policy, recipe, given, environment)
        snapshots = tuple(recipes.distill(looks.calibrated(), spec, looks))
        return Distilled(Agent(recipes.best(snapshots).policy), snapshots)

    def predict(
        self,
        observation: ArrayLike | dict[str, Array],
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
        *,
        action_masks: ArrayLike | None = None,
        engine: str = "litert",
    ) -> tuple[Array, None]:
        """The action for one observation, or the actions for a batch, and None: Stable-Baselines3's own signature.

        An action is int64, or int64 or float32 [A], with B before that for a batch. QuarlError for another shape or
        key, and for NaN or infinity (in float32), for which quantised kernels have no code.

        observation: one, or B of them [B, ...].
        state, episode_start: accepted for that signature and not used, as policies here have no memory.
        action_masks: of MaskablePPO: truths, one for each score, of the discrete actions that are allowed.

        >>> agent.predict([[0.0, 0.1, 0.02, -0.1], [0.0, 0.0, -0.1, -0.5]])
        (array([1, 0]), None)
        """
        if not deterministic:
            raise QuarlError("predict is deterministic; evaluate(stochastic=True) samples with a seed of its own")
        rows, single = policy_rows(self.policy, observation)
        with self._lock:  # an engine has one set of buffers
            outputs = self._engine(engine, len(rows)).run(rows)
        outputs = engines.sound(self.policy, rows, outputs)
        if action_masks is not None:
            if not self.policy.head.is_discrete:
                raise QuarlError("action_masks are of discrete actions, the policy's are numbers: drop them")
            try:
                outputs = allowed(outputs, action_masks)
            except ValueError as error:
                raise QuarlError(str(error)) from None
        actions = self.policy.head(outputs)
        return (actions[0] if single else actions), None

    @checks_keywords
    def evaluate(
        agent: Agent | str | os.PathLike[str],
        *,
        episodes: int = 100,
        first: int = 0,
        seed: int = 0,
        engine: str | Engine = "litert",
        batch: int = 16,
        stochastic: bool | None = None,
        num_workers: int = 1,
        stream: Stream = "evaluation",
        progress: Callable[[Episode], None] | None = None,
        **where: Unpack[EnvironmentKeywords],
    ) -> evaluation.Evaluation:
        """Play episodes; their returns depend on the policy, the environment and `seed`, on nothing else.

        QuarlError where there is no such environment, or it is none for this policy.

        first: number of the first episode; those of a seed go on behind any that were played.
        env_id: None plays what the policy was trained on.
        env_kwargs: arguments of the environment over those that the policy knows of.
        wrappers: in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name, arguments).
        frame_stack: observations that are stacked, in place of what the policy says; 1 stacks none.
        max_episode_steps: the time limit, in place of the policy's or the registered one.
        engine: a name, or one that is loaded: then its batch is played, in this process.
        batch: episodes played side by side, in one call of the engine per step.
        stochastic: None follows the zoo's convention for this agent.
        num_workers: processes that share the episodes; worth it where a step of the environment is slow.
        progress: called with every finished episode, in the order they finish.
        env: the environment to play in, one episode after the other, instead of new ones; it is not closed. `env_id`
        beside it is the name that results have for it.

        >>> quarl.evaluate(agent, episodes=5, seed=1).returns
        array([500., 500., 500., 500., 500.])
        """
        policy, environment = in_environment(agent_of(agent, where.get("frame_stack"))._quantized(), **where)
        return evaluation.evaluate(
            policy,
            environment,
            episodes=episodes,
            first=first,
            seed=seed,
            engine=engine,
            batch=batch,
            stochastic=stochastic,
            num_workers=num_workers,
            stream=stream,
            progress=progress,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes QuaRL's artefact (.safetensors, .quarl or no suffix), or a .tflite or .onnx file for other runtimes.

        Such a file reads the raw observation, an image with its channels first. Its output is the greedy action,
        within its bounds; of discrete actions it is their scores, and the action is the number of the largest: of
        MultiDiscrete ones in each part, of MultiBinary ones a bit is 1 above 0. What it makes of NaN and infinity is
        the runtime's affair: `predict` refuses them, a file cannot. What of a .tflite file TFLite Micro cannot run is
        said on stderr, how scores divide, and with which statistics the file normalises observations.
        QuarlError for another suffix, and where the runtime has no kernels for the precision.

        >>> agent.quantize("int8", mode="static").save("policy.tflite")
        """
        target = Path(path)
        suffix = target.suffix.lower()

        def say(line: str) -> None:
            note(f"{target.name}: {line}")

        if suffix in OWN:
            artifact.write(self.policy, target)
        elif suffix in engines.FORMATS:
            with extras(f"a {suffix} file"):  # runtimes' libraries take their time to import
                writer = importlib.import_module(f"quarl.engines.{engines.FORMATS[suffix]}")
            options = {"say": say} if suffix == ".tflite" else {}
            try:
                content = writer.write(self._quantized(), acts=True, **options)
            except UnsupportedError as error:
                raise UnsupportedError(f"{error}; save it as .safetensors") from None
            write_bytes(content, target)
            if self.policy.head.reading:
                say(self.policy.head.reading)
            if is_masked(self.policy):
                say("its scores are unmasked: choose the largest among those of the actions that are allowed")
            if line := outside(self.policy.provenance.wrappers):
                say(line)
            if self.policy.inputs:
                say(f"it reads one row, as gymnasium flattens it: {layout(self.policy.inputs)}")
        else:
            raise QuarlError(f"cannot save {target.name} as {suffix}: use .safetensors, .quarl, .tflite or .onnx")
        say(sentence(self.policy))

    @checks_keywords
    def export(
        self,
        target: str,
        directory: str | os.PathLike[str],
        *,
        precision: str | int | None = None,
        mode: Mode | None = None,
        observations: ArrayLike | dict[str, Array] | None = None,
        seed: int = 0,
        **where: Unpack[EnvironmentKeywords],
    ) -> dict[str, Any]:
        """Writes the folder of `quarl export`: the file of a target, its contract, golden vectors and how to call it.

        Returns the contract. An agent that is quantised already keeps its codes and grids; one in dynamic mode gets
        grids where the target wants them. QuarlError as of `quantize`, UnsupportedError for what the target has not.

        target: "tflite", "onnx", "onnx-qdq" or "c".
        precision: as of `quantize`; None is int8, or the agent's own. mode: None is static, or the agent's own.
        observations: raw ones [N, ...] for calibration and golden vectors; None records the policy's own episodes.
        env_id, env_kwargs, wrappers, frame_stack, max_episode_steps, env: as `quantize` takes them; the contract and
        the saved policy name the environment.

        >>> agent.export("tflite", "cartpole")["arithmetic"]
        'f32-rne'
        """
        policy, environment = in_environment(self.policy, **where)
        given = None if observations is None else policy_rows(policy, observations)[0]
        about: Any = {"observations": given, "environment": environment, "seed": seed}
        exported = exporting.quantised(policy, target, precision, mode, **about)
        return exporting.export(exported, target, Path(directory), **about)

    def _quantized(self) -> QuantizedPolicy:
        if isinstance(self.policy, QuantizedPolicy):
            return self.policy
        return quantize(self.policy, EXACT)

    def _engine(self, name: str, batch: int) -> Engine:
        engine = self._engines.pop((name, batch), None) or engines.load(self._quantized(), name, batch=batch)
        self._engines[name, batch] = engine  # the newest is the last
        while len(self._engines) > KEPT_ENGINES:
            del self._engines[next(iter(self._engines))]
        return engine


@dataclass(frozen=True, eq=False, slots=True)
class Distilled:
    """What `Agent.distill` gives."""

    agent: Agent
    """Of the last snapshot where that was shown to lose less than the margin, else of the best."""
    snapshots: tuple[Snapshot, ...]
    """Calibration's and one of each round, with their `returns` in validation."""


def agent_of(agent: Agent | str | os.PathLike[str], frame_stack: Any = None) -> Agent:
    """Return the agent itself, or the one at a path; frame_stack: as of `load`."""
    if isinstance(agent, Agent):
        return agent
    if not isinstance(agent, str | os.PathLike):
        kind = type(agent).__name__
        raise QuarlError(f"agent is a {kind}, no Agent and no path; quarl.from_sb3 takes a live model")
    return load(agent, frame_stack=frame_stack)


evaluate = Agent.evaluate
distill = Agent.distill
from_module = Agent.from_module
from_sb3 = Agent.from_model


@checks_keywords
def load(
    path: str | os.PathLike[str],
    *,
    normalize: str | os.PathLike[str] | None = None,
    frame_stack: int | None = None,
) -> Agent:
    """The agent in a Stable-Baselines3 zip, zoo run folder, Stable-Baselines 2 or QuaRL file, or at hub:ORG/NAME.

    Nothing that a file holds is run. QuarlError where no agent lies, or one that cannot be read.

    normalize: the file of the VecNormalize statistics with which it observed; "none": it observed without. None finds
    what lies beside it, and refuses where that leaves a choice.
    frame_stack: number of observations that were stacked, in place of what files beside the agent say: statistics of
    one observation then hold for each.

    >>> quarl.load("CartPole-v1.zip").predict([0.0, 0.1, 0.02, -0.1])
    (np.int64(1), None)
    """
    return Agent(
        read(Path(path), normalize=None if normalize is None else os.fspath(normalize), frame_stack=frame_stack)
    )
