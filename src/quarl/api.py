"""What a Python user holds: `quarl.load(path)` gives an Agent, which quantises, acts, plays and saves."""

from __future__ import annotations

import importlib
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quarl import engines
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import Engine
from quarl.envs.options import EnvironmentOptions
from quarl.errors import QuarlError, UnsupportedError, did_you_mean, note
from quarl.evaluation import Evaluation, evaluate, record
from quarl.files import write_bytes
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.quant.spec import EXACT, Mode, QuantSpec
from quarl.readers.load import read
from quarl.readers.normalizer import sentence
from quarl.readers.spaces import has_channels_last

KEPT_ENGINES = 4
"""Of an agent, one for each batch size that it was asked for lately."""
OWN = ("", ".safetensors", ".quarl")
"""Suffixes of QuaRL's artefact; "": a name without one stays as it is."""
WRITERS = {".tflite": "litert", ".onnx": "onnx"}
"""By suffix, the engine whose format it is."""


CALLED = {
    **dict.fromkeys(("env", "env_name"), "env_id"),
    **dict.fromkeys(("n_episodes", "n_eval_episodes"), "episodes"),
    **{"max_steps": "max_episode_steps", "wrapper": "wrappers", "bits": "precision", "deterministic": "stochastic"},
}
"""What other libraries, or other verbs, call keywords."""


class Agent:
    """A trained policy, float or quantised, with what one does with it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._engines: dict[tuple[str, int], Engine] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.policy,)  # engines and locks are made anew, in whichever process

    def quantize(
        self,
        precision: str | int = "int8",
        *,
        observations: Array | None = None,
        env_id: str | None = None,
        scheme: str = "default",
        mode: Mode = "dynamic",
        seed: int = 0,
        **environment: Any,
    ) -> Agent:
        """A new agent in that precision: "int8", "int4", "fp16", "w4a8", or a number of bits.

        observations: raw calibration observations [N, *shape], as the environment gives them; None records the
        policy's own episodes in the environment it was trained on, or `env_id`, from calibration seeds.
        environment: env_kwargs, wrappers, frame_stack and max_episode_steps as `evaluate` takes them; the new agent
        knows them.
        """
        _check_keywords(Agent.quantize, environment)
        if is_quantized(self.policy):
            raise QuarlError(f"this policy is {self.policy.spec.precision} already; quantise the fp32 one")
        spec = QuantSpec.parse(precision, scheme=scheme, mode=mode)
        policy = EnvironmentOptions.of(**environment).at_home(self.policy, env_id)
        if observations is None and spec.needs_observations:
            observations = record(policy, seed=seed, env_id=env_id)
        given = None if observations is None else self._channels_first(_numbers(observations))
        return Agent(quantize(policy, spec, given))

    def predict(
        self,
        observation: Array,
        state: None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
        *,
        engine: str = "litert",
    ) -> tuple[Array, None]:
        """The action for one observation, or the actions for a batch, and None: Stable-Baselines3's own signature.

        `state` and `episode_start` are accepted for it and not used: policies here have no memory. Threads may share
        an agent. QuarlError for an observation with NaN or infinity (in float32), for which quantised kernels have no
        code.
        """
        if not deterministic:
            raise QuarlError("predict is deterministic; evaluate(stochastic=True) samples with a seed of its own")
        x = self._channels_first(_numbers(observation))
        single = x.shape == self.policy.observation_shape
        if not single and x.shape[1:] != self.policy.observation_shape:
            raise QuarlError(f"observation is {x.shape}, the policy expects {self.policy.observation_shape}")
        if self.policy.observation_dtype == "uint8" and x.dtype != np.uint8:
            raise QuarlError(f"observation is {x.dtype}, the policy expects bytes 0..255 (uint8)")
        with np.errstate(over="ignore"):
            x = x.astype(self.policy.observation_dtype)
        if not np.isfinite(x).all():
            raise QuarlError("the observation holds NaN or infinity; act without the policy there")
        rows = x[None] if single else x
        if not len(rows):
            raise QuarlError("there is no observation among the 0 that were given; act for at least one")
        with self._lock:  # an engine has one set of buffers
            outputs = self._engine(engine, len(rows)).run(rows)
        actions = self.policy.head(engines.sound(self.policy, rows, outputs))
        return (actions[0] if single else actions), None

    def _channels_first(self, x: Array) -> Array:
        """Images in the policy's order of axes, as Stable-Baselines3's own `predict` puts them."""
        return np.moveaxis(x, -1, -3) if has_channels_last(x.shape[-3:], self.policy.observation_shape) else x

    def evaluate(self, **options: Any) -> Evaluation:
        """Returns of episodes in the policy's environment; options as of `quarl.evaluation.evaluate`."""
        _check_keywords(evaluate, options)
        return evaluate(self._quantized(), **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes QuaRL's artefact (.safetensors, .quarl or no suffix), or a .tflite or .onnx file for other runtimes.

        Such a file reads the raw observation, an image with its channels first. Its output is the greedy action,
        within its bounds; of discrete actions it is their scores, and the action is the number of the largest. What it
        makes of NaN and infinity is the runtime's affair: `predict` refuses them, a file cannot. What of a .tflite file
        TFLite Micro cannot run is said on stderr, and with which statistics the file normalises observations.
        """
        target = Path(path)
        suffix = target.suffix.lower()

        def say(line: str) -> None:
            note(f"{target.name}: {line}")

        if suffix in OWN:
            artifact.write(self.policy, target)
            say(sentence(self.policy))
            return
        if suffix not in WRITERS:
            raise QuarlError(f"cannot save {target.name} as {suffix}: use .safetensors, .quarl, .tflite or .onnx")
        # runtimes' libraries take their time to import
        writer = importlib.import_module(f"quarl.engines.{WRITERS[suffix]}")
        options: dict[str, Any] = {"acts": True}
        if suffix == ".tflite":
            options["say"] = say
        try:
            content = writer.write(self._quantized(), **options)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; save it as .safetensors") from None
        write_bytes(content, target)
        say(sentence(self.policy))

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


def _numbers(observation: Any) -> Array:
    """The observation as an array; QuarlError for what no environment's step gives."""
    if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
        raise QuarlError("env.reset() gives (observation, info): act on the observation alone, as in predict(obs)")
    if hasattr(observation, "detach"):  # a torch tensor, wherever it lies
        observation = observation.detach().cpu()
    try:
        array = np.asarray(observation)
    except (ValueError, TypeError, RuntimeError) as error:
        raise QuarlError(
            f"the observation is no array of numbers ({str(error)[:80]}); its rows have one shape"
        ) from None
    if array.dtype.kind not in "fiub":
        raise QuarlError(f"the observation is a {type(observation).__name__} of {array.dtype}, not of real numbers")
    return array


def _check_keywords(method: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuses a keyword that the method has not, naming the one that was meant."""
    parameters = (*inspect.signature(method).parameters, *inspect.signature(EnvironmentOptions.of).parameters)
    known = [name for name in parameters if name not in ("self", "policy", "environment")]
    for name in given:
        if name not in known:
            meant = f"; did you mean {CALLED[name]!r}?" if CALLED.get(name) in known else did_you_mean(name, known)
            raise QuarlError(f"{method.__name__} has no keyword {name!r}{meant} (known: {', '.join(known)})")


def load(path: str | os.PathLike[str], *, normalize: str | os.PathLike[str] | None = None) -> Agent:
    """The agent in a Stable-Baselines3 zip, zoo run folder, Stable-Baselines 2 or QuaRL file, or at hub:ORG/NAME.

    normalize: the file of the VecNormalize statistics with which it observed; "none": it observed without. None finds
    what lies beside it, and refuses where that leaves a choice.
    """
    return Agent(read(Path(path), normalize=None if normalize is None else os.fspath(normalize)))
