"""The Python API: `quarl.load(path)` returns an Agent, which can be quantized, evaluated, exported and saved."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from quarl import engines, evaluation
from quarl import export as exporting
from quarl.arguments import check, checks_keywords, policy_rows, recorded_rows, with_state
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import Engine
from quarl.envelope import asked, met_in
from quarl.envs.environment import EnvironmentKeywords, in_environment
from quarl.envs.masks import allowed, is_masked
from quarl.envs.rollout import Episode
from quarl.envs.seeds import Stream
from quarl.errors import QuarlError, UnsupportedError, extras, note
from quarl.files import write_bytes
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Policy, QuantizedPolicy, in_words, is_quantized
from quarl.policy.inputs import layout
from quarl.quant.schemes import typed_by_user
from quarl.quant.spec import EXACT, Mode, QuantSpec
from quarl.readers.load import read
from quarl.readers.normalizer import outside, sentence
from quarl.readers.observation import observe
from quarl.readers.plain_spaces import action_head, from_live
from quarl.specs import PATH, DistillSpec

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from torch import nn

    from quarl.distillation.rounds import Snapshot

KEPT_ENGINES = 4
"""Loaded engines that an agent caches, one for each recent pair of engine and batch size."""
OWN = ("", ".safetensors", ".quarl")
"""Suffixes of QuaRL's artifact; "" because a name without a suffix is kept unchanged."""


class Agent:
    """A trained policy, float or quantized, with methods to quantize, evaluate, export and save it.

    `quarl.load` reads one from a file, `from_sb3` from a live Stable-Baselines3 model and `from_module` from your own
    network; `quantize` derives one from another agent. Agents are immutable: threads can share them, and they can be
    pickled and sent to processes.

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
        """Return the agent of a live model of Stable-Baselines3, sb3-contrib or D4PG.

        The agent is a copy of the current weights, so training may continue. It includes the statistics of the model's
        VecNormalize and its environment. A model of quantization-aware training becomes a policy of the integers with
        which it acts.

        Args:
            model: The model.

        Raises:
            UnsupportedError: A part of the model has no counterpart; the message names it.

        >>> quarl.from_sb3(stable_baselines3.PPO("MlpPolicy", "CartPole-v1"))
        Agent(ppo CartPole-v1, fp32, 4-64-64-2, 4,480 weights)
        """
        from quarl.readers.extract import from_model  # needs torch, which loading a file does not

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
        state: tuple[Any, ...] = (),
        normalize: Any = None,
    ) -> Agent:
        """Return an agent whose network is `module`.

        The module may have dense, convolution, pooling, normalization, activation and recurrent layers. A recurrent
        one takes and returns its state, as in `output, state = module(observation, *state)`, or keeps it in buffers.

        Args:
            module: The network in PyTorch.
            observation: Space of the observations, or the shape of one; images have their channels first. For a space
                other than a Box the module reads rows as `gymnasium.spaces.flatten` makes them.
            head: Space of the actions, for which the module returns scores or values; or an ActionHead.
            observation_dtype: Type of the observations if `observation` is a shape.
            output: Index, from 0, of the policy's output if the module returns several tensors; None if it returns one.
            state: Arguments of the module after the observation at the start of an episode: arrays or tuples of
                arrays, in their shapes for one observation. It returns the next ones after its output, in this order.
            normalize: Statistics of the observations that the module reads normalized, as in
                clip((x - mean) / sqrt(var + epsilon), -clip, clip): a mapping, an object such as `obs_rms` of
                gymnasium's NormalizeObservation, or the path of an .npz file, with mean and var in the shape of an
                observation. Optional entries are clip (10; infinity does not clip) and epsilon (1e-8).

        Raises:
            QuarlError: The statistics are unusable, or belong to another observation.
            UnsupportedError: A layer has no counterpart; the message names it. The module has no forward.

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
        return cls(from_module(module, **fields, head=head, output=output, state=state, normalize=normalize))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.policy,)  # every process loads its own engines and lock

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
        symmetric_activations: bool = False,
        envelope: str | ArrayLike | dict[str, Array] = PATH,
        seed: int = 0,
        **where: Unpack[EnvironmentKeywords],
    ) -> Agent:
        """Return a new agent quantized to a precision.

        An agent that is already quantized to the same precision is returned unchanged.

        Args:
            precision: "int8", "int4", "int4e8" (8 bits in the first and the last layers), "fp16", "w4a8", or a number
                of bits.
            observations: Raw calibration observations [N, ...], as the environment returns them; None records the
                policy's own episodes, whose seeds are reserved for calibration. A policy with a memory needs a
                dictionary of these in the order of time and of `episode_start`, bool [N].
            scheme: Name of the quantization scheme, which turns weights into codes.
            mode: "dynamic" quantizes activations per row at run time, "static" on grids calibrated beforehand.
            symmetric_activations: Give the grids of static mode zero point 0, as TensorRT requires.
            envelope: States that the grids of static mode cover: "path", those of calibration; "visited*1.5", also
                farther from their mean by factors up to 1.5; "env", also those of perturbed episodes and random starts;
                or also these observations [M, ...].
            seed: Seed of the calibration episodes.
            env_id: The environment; None means the one that the policy was trained in.
            env_kwargs: Arguments of the environment, in addition to those that the policy records.
            wrappers: Wrappers in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name,
                arguments).
            frame_stack: Number of stacked observations in place of the policy's; 1 means no stacking.
            max_episode_steps: Time limit in steps, in place of the policy's or the registered one.
            env: A live environment to play in, as in `evaluate`.

        Returns:
            The quantized agent, which records the environment options.

        Raises:
            QuarlError: The precision or scheme is unknown, the agent is already quantized to another precision, or the
                calibration observations or their environment do not fit the policy.

        >>> agent.quantize("int8")
        Agent(dqn CartPole-v1, int8 dynamic, 4-256-256-2, 67,072 weights)
        """
        if is_quantized(self.policy):
            own = self.policy.spec
            fits = mode in ("dynamic", own.mode) and symmetric_activations <= own.symmetric_activations
            if own.is_called(precision) and scheme in ("default", own.scheme.name) and fits:
                note(f"the policy is {own.in_words} already: its codes and grids are kept")
                return self
            raise QuarlError(f"this policy is {own.in_words} already; quantize the fp32 one")
        scheme = typed_by_user(scheme)
        spec = QuantSpec.parse(precision, scheme=scheme, mode=mode, symmetric_activations=symmetric_activations)
        policy, environment = in_environment(self.policy, **where)
        covered = asked(policy, envelope, mode)
        given = None if observations is None else recorded_rows(policy, observations)
        if spec.needs_observations:
            recorded = given if given is None else evaluation.check_recorded(given)
            given = met_in(covered, policy, environment, recorded=recorded, seed=seed)
        return Agent(quantize(policy, spec, given))

    @checks_keywords
    def distill(
        agent: Agent | str | os.PathLike[str],
        precision: str | int = 4,
        *,
        observations: ArrayLike | dict[str, Array] | None = None,
        mode: Mode = "dynamic",
        symmetric_activations: bool = False,
        envelope: str | ArrayLike | dict[str, Array] = PATH,
        rounds: int = DistillSpec.rounds,
        updates: int = DistillSpec.updates,
        states: int = DistillSpec.states,
        validation: int = DistillSpec.validation,
        margin: float = DistillSpec.margin,
        budget: int | str | None = None,
        seed: int = 0,
        **where: Unpack[EnvironmentKeywords],
    ) -> Distilled:
        """Train a quantized copy of the agent, in 2 to 8 bits, to act as the agent does in float32.

        `quarl distill` does the same on the command line.

        Args:
            agent: The agent in float32, or its path.
            precision: Precision of the copy, as in `quantize`.
            observations: Recorded observations [N, ...] instead of an environment. The copy then learns from these
                states only, and snapshots are compared by the error of their actions on the last tenth instead of by
                returns.
            mode: Quantization of activations, as in `quantize`.
            symmetric_activations: Give the grids of static mode zero point 0, as in `quantize`.
            envelope: States that the grids of static mode cover, as in `quantize`.
            rounds: Maximum number of rounds; each trains, validates a snapshot and collects new states.
            updates: Optimizer steps of a round.
            states: States that each round adds to the training data.
            validation: Episodes that validate each snapshot.
            margin: Acceptable loss of return in percent of float32's. Training stops early once a snapshot is shown to
                lose less.
            budget: Limit of the training: a number of updates, or minutes as in "10m"; None means no limit besides
                `rounds`.
            seed: Seed of the training and its episodes.
            env_id: The environment; None means the one that the policy was trained in.
            env_kwargs: Arguments of the environment, in addition to those that the policy records.
            wrappers: Wrappers in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name,
                arguments).
            frame_stack: Number of stacked observations in place of the policy's; 1 means no stacking.
            max_episode_steps: Time limit in steps, in place of the policy's or the registered one.
            env: A live environment to play in, as in `evaluate`.

        Returns:
            The best agent, and all snapshots.

        Raises:
            QuarlError: An option is out of range, the agent is already quantized, or the environment does not fit.

        >>> agent.distill(2, rounds=1, updates=50, validation=10).agent
        Agent(dqn CartPole-v1, int2e8 dynamic, 4-256-256-2, 67,072 weights)
        """
        with extras("distill"):  # imported here because it imports Agent, too
            from quarl.distillation import rounds as recipes
            from quarl.distillation.validation import Validation

        policy = agent_of(agent, where.get("frame_stack")).policy
        if is_quantized(policy):
            raise QuarlError(f"this policy is {policy.spec.precision} already; distill the fp32 one")
        told: Any = {"rounds": rounds, "updates": updates, "states": states, "validation": validation}
        told |= {"bits": (str(precision),), "mode": mode, "margin": margin, "seed": seed}
        told["symmetric_activations"] = symmetric_activations
        recipe = DistillSpec(budget=None if budget is None else str(budget), **told)
        check(recipe, {"bits": "precision"})
        policy, environment = in_environment(policy, **where)
        given = None if observations is None else recorded_rows(policy, observations)
        covered = asked(policy, envelope, mode)
        (spec,), looks = recipe.specs(), Validation(policy, recipe, given, environment, covered)
        snapshots = tuple(recipes.distill(looks.calibrated(), spec, looks))
        return Distilled(Agent(recipes.best(snapshots).policy), snapshots)

    def predict(
        self,
        observation: ArrayLike | dict[str, Array],
        state: ArrayLike | tuple[Array, ...] | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,
        *,
        action_masks: ArrayLike | None = None,
        engine: str = "litert",
    ) -> tuple[Array, Any]:
        """Return the action for one observation, or the actions for a batch, and the next state.

        The signature is the one of Stable-Baselines3.

        Args:
            observation: One observation, or a batch [B, ...]; a dictionary if the policy has named inputs.
            state: The state that the last call returned, float32 [S], or [B, S] for a batch; None starts an episode. It
                is ignored if the policy has no memory.
            episode_start: Booleans [B] that are True for observations that start an episode, whose state is then the
                initial one; None means none.
            deterministic: Must be True; `evaluate(stochastic=True)` samples actions.
            action_masks: Booleans, one for each score, that are True for the allowed discrete actions, as in
                MaskablePPO; None allows all actions.
            engine: Name of the engine that runs the policy.

        Returns:
            A tuple of the action and the next state, which is None if the policy has no memory. Discrete actions are
            int64 numbers, others int64 or float32 arrays [A]; for a batch their shapes are [B] and [B, A].

        Raises:
            QuarlError: The observation or the state has another shape or other keys, or it contains NaN or infinity (in
                float32), for which quantized kernels have no code.

        >>> agent.predict([[0.0, 0.1, 0.02, -0.1], [0.0, 0.0, -0.1, -0.5]])
        (array([1, 0]), None)
        """
        if not deterministic:
            raise QuarlError("predict is deterministic; evaluate(stochastic=True) samples with a seed of its own")
        rows, single = policy_rows(self.policy, observation)
        if remembers := bool(self.policy.state.size):
            rows = with_state(self.policy, rows, state, episode_start, single=single)
        with self._lock:  # an engine has a single set of buffers
            outputs = self._engine(engine, len(rows)).run(rows)
        outputs = engines.sound(self.policy, rows, outputs)
        outputs, states = np.split(outputs, [self.policy.head.width or outputs.shape[1]], axis=1)
        if action_masks is not None:
            if not self.policy.head.is_discrete:
                raise QuarlError("action_masks require discrete actions, but the policy's are continuous: drop them")
            try:
                outputs = allowed(outputs, action_masks)
            except ValueError as error:
                raise QuarlError(str(error)) from None
        actions = self.policy.head(outputs)
        acted, states = (actions[0], states[0]) if single else (actions, states)
        return acted, states.copy() if remembers else None

    @checks_keywords
    def evaluate(
        agent: Agent | str | os.PathLike[str],
        /,
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
        """Play episodes and return their results, which depend only on the policy, the environment and `seed`.

        Args:
            agent: The agent, or its path.
            episodes: Number of episodes.
            first: Index of the first episode; a later call continues a seed's episodes after those already played.
            seed: Seed of the episodes.
            engine: Name of an engine, or a loaded one, which plays with its own batch size in this process.
            batch: Episodes played side by side, in one call of the engine per step.
            stochastic: Sample actions from the policy's distribution; None follows the zoo's convention for this agent.
            num_workers: Number of processes that share the episodes; more than one pays if environment steps are slow.
            stream: Purpose of the episodes, which keeps their seeds apart from those of other purposes.
            progress: Called with every finished episode, in the order in which they finish.
            env_id: The environment; None means the one that the policy was trained in.
            env_kwargs: Arguments of the environment, in addition to those that the policy records.
            wrappers: Wrappers in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name,
                arguments).
            frame_stack: Number of stacked observations in place of the policy's; 1 means no stacking.
            max_episode_steps: Time limit in steps, in place of the policy's or the registered one.
            env: A live environment to play in, one episode after another, instead of new ones; it is not closed.
                `env_id` is then the name under which results report it.

        Returns:
            Returns, lengths, seeds and successes, episode by episode, with the time that they took.

        Raises:
            QuarlError: The environment does not exist or does not fit the policy, or an option is out of range.

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
        """Write a QuaRL artifact (.safetensors, .quarl or no suffix), or a .tflite or .onnx file for other runtimes.

        A .tflite or .onnx file reads the raw observation, an image with its channels first. Its output for continuous
        actions is the greedy action, within its bounds. For discrete actions it is their scores, and the action is the
        index of the largest. MultiDiscrete has such an index for each part; a bit of MultiBinary is 1 if its score is
        above 0. `predict` refuses NaN and infinity, but a file cannot: the result then depends on the runtime. Lines on
        stderr report operators that TFLite Micro cannot run, how the scores are divided, and the statistics with which
        the file normalizes observations.

        Args:
            path: Path of the file; its suffix chooses the format.

        Raises:
            QuarlError: The suffix is unknown, or the runtime has no kernels for the precision.

        >>> agent.quantize("int8", mode="static").save("policy.tflite")
        """
        target = Path(path)
        suffix = target.suffix.lower()

        def say(line: str) -> None:
            note(f"{target.name}: {line}")

        if suffix in OWN:
            artifact.write(self.policy, target)
        elif suffix in engines.FORMATS:
            with extras(f"a {suffix} file"):  # the runtimes' libraries are slow to import
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
                say("its scores are unmasked: choose the largest among those of the allowed actions")
            if line := outside(self.policy.provenance.wrappers):
                say(line)
            if self.policy.inputs:
                say(f"it reads one row, as gymnasium flattens it: {layout(self.policy.inputs)}")
            if self.policy.state.size:
                say("it has a memory: feed each output NAME.next back as input NAME; episodes start with policy.state")
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
        symmetric_activations: bool = False,
        observations: ArrayLike | dict[str, Array] | None = None,
        envelope: str | ArrayLike | dict[str, Array] = PATH,
        seed: int = 0,
        name: str = "policy",
        package: str | None = None,
        names: str | os.PathLike[str] | None = None,
        **where: Unpack[EnvironmentKeywords],
    ) -> dict[str, Any]:
        """Write the folder of `quarl export`: a target's file, its contract, golden vectors and usage instructions.

        An agent that is already quantized keeps its codes and grids. An agent in dynamic mode gets calibrated grids if
        the target requires them.

        Args:
            target: "tflite", "tflite-int16x8", "onnx", "onnx-qdq" or "c".
            directory: The folder to write.
            precision: Precision, as in `quantize`; None means int8, or the agent's own if it is quantized.
            mode: Quantization of activations; None means static, or the agent's own if it is quantized.
            symmetric_activations: Give new grids zero point 0, as in `quantize`, and refuse an agent that has others.
            observations: Raw observations [N, ...] for calibration and golden vectors; None records the policy's own
                episodes.
            envelope: States that new grids cover, as in `quantize`.
            seed: Seed of these episodes.
            name: Prefix of the symbols, macros and files of "c".
            package: Project around "c" with a control loop: "cmake", "platformio" or "esp-idf"; None writes none.
            names: YAML or JSON file with names and units of numbers for the contract, as `--names` takes.
            env_id: The environment; None means the one that the policy was trained in.
            env_kwargs: Arguments of the environment, in addition to those that the policy records.
            wrappers: Wrappers in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name,
                arguments).
            frame_stack: Number of stacked observations in place of the policy's; 1 means no stacking.
            max_episode_steps: Time limit in steps, in place of the policy's or the registered one.
            env: A live environment to play in, as in `evaluate`.

        Returns:
            The contract, which names the environment, as the saved policy does.

        Raises:
            QuarlError: The options or observations are invalid, as in `quantize`.
            UnsupportedError: The target cannot express a part of the policy.

        >>> agent.export("tflite", "cartpole")["arithmetic"]
        'f32-rne'
        """
        policy, environment = in_environment(self.policy, **where)
        given = None if observations is None else recorded_rows(policy, observations)
        told = None if names is None else exporting.read_names(Path(names), policy)
        about: Any = {"observations": given, "environment": environment, "seed": seed}
        new: Any = {"symmetric_activations": symmetric_activations, "envelope": asked(policy, envelope, mode)}
        exported = exporting.quantised(policy, target, precision, mode, **new, **about)
        about |= {"name": name, "package": package, "agent": policy, "names": told}
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
    """Result of `Agent.distill`."""

    agent: Agent
    """Agent of the last snapshot if that was shown to lose less than the margin, otherwise of the best."""
    snapshots: tuple[Snapshot, ...]
    """Snapshot after calibration and after each round, with their `returns` in validation."""


def agent_of(agent: Agent | str | os.PathLike[str], frame_stack: Any = None) -> Agent:
    """Return the agent itself, or load the one at a path.

    Args:
        agent: The agent, or its path.
        frame_stack: Number of stacked observations, as in `load`.
    """
    if isinstance(agent, Agent):
        return agent
    if not isinstance(agent, str | os.PathLike):
        kind = type(agent).__name__
        raise QuarlError(f"agent is a {kind}, neither an Agent nor a path; quarl.from_sb3 takes a live model")
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
    head: str = "",
    output_name: str = "",
    fix: Mapping[str, float] | None = None,
    activation: str = "",
) -> Agent:
    """Load the agent in a Stable-Baselines3 zip, zoo run folder, Stable-Baselines 2, ONNX or QuaRL file.

    No code in a file is executed.

    Args:
        path: Path of the file or folder, or hub:ORG/NAME.
        normalize: File of the VecNormalize statistics with which the agent was trained; "none" means that it was
            trained without. None uses the file beside the agent, and raises an error if there are several candidates.
        frame_stack: Number of stacked observations, in place of the number in files beside the agent. Statistics of a
            single observation then apply to each of the stack.
        head: Meaning of the output of an .onnx or .pt file: raw, clip:LOW,HIGH, tanh:LOW,HIGH, argmax:2,3 or gaussian;
            "" is the one that the file contains.
        output_name: Name of the output of an .onnx file that is the action; "" is the only one.
        fix: Numbers by which inputs of an .onnx file become constant, by name.
        activation: Function between the layers of a checkpoint of rsl_rl, rl_games or skrl; "" is the one in the
            agent.yaml of its run.

    Raises:
        QuarlError: There is no agent at the path, or it cannot be read.

    >>> quarl.load("CartPole-v1.zip").predict([0.0, 0.1, 0.02, -0.1])
    (np.int64(1), None)
    """
    return Agent(
        read(
            Path(path),
            normalize=None if normalize is None else os.fspath(normalize),
            frame_stack=frame_stack,
            head=head,
            output_name=output_name,
            fix=fix,
            activation=activation,
        )
    )
