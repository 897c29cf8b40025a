"""A study file: the policies, methods, precisions and seeds whose product is the study, read as data.

name: two-tasks
episodes: 100                                      # of every cell
policies:
  - {algo: dqn, env: CartPole-v1, source: "zoo:sb3"}
  - {algo: ppo, env: Acrobot-v1, source: train, n_timesteps: 100000}
methods:
  - {method: fp32}
  - {method: ptq, precision: [fp16, 8, 4], scheme: [default, naive]}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quarl.config import ActorQConfig
from quarl.config.base import LOUDNESS
from quarl.config.environment import OPTIONS, EnvironmentConfig, spelled
from quarl.config.learner_options import CONTRIB, unknown_algorithm
from quarl.config.train import QAT_OPTIONS
from quarl.envs.bound import LIMIT, longest
from quarl.envs.options import EnvironmentOptions
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.inert.yaml import key_lines, read_yaml
from quarl.lab import checks
from quarl.lab.checks import Place, count, key, mapping, must, number, word, words
from quarl.processes.pool import Bounds
from quarl.quant.spec import EDGES, QatSpec, QuantSpec
from quarl.specs import LEARNERS, METERED, DistillSpec, check_types

SHIPPED = Path(__file__).with_name("shipped")
MARGIN_PCT = 5.0
"""Margin of a study that names none."""
BOUNDS = Bounds(minutes=60.0, memory_gb=4.0)
"""Bounds of one cell, for its processes together, in a study without limits."""
SET_BY_CELLS = (
    *("algo", "env", "actor_precision", "seed", "output", "resume", "plan", "track", "distill"),
    *("cluster", "nodes", "actors_per_node"),
    *("json", *LOUDNESS, *METERED, *OPTIONS),
)
"""Options of `quarl actorq` that a cell sets itself."""
ACTORQ = tuple(field.name for field in dataclasses.fields(ActorQConfig) if field.name not in SET_BY_CELLS)
TRAIN = ("n_envs", "learner_dtype", "eval_freq", "eval_episodes", "save_freq", "threads", "device")
"""Options of `quarl train` that a policy may set for its trainings."""
OF_METHOD: Mapping[str, tuple[str, ...]] = {
    "fp32": (),
    "ptq": ("precision", "edge_bits", "scheme", "mode"),
    "distill": ("precision", "edge_bits", "mode", "rounds", "updates", "states", "validation"),
    "qat": ("precision", "edge_bits", "fine_tune", *QAT_OPTIONS),
    "actorq": ("precision", "development_seed", "also_seeds", "cap", "derived", "in_updates", *ACTORQ),
    "throughput": ("precision", "seconds", "warm_up", *ACTORQ),
    "untrained": (),
    "updates": ("dtypes", "seconds"),
}
"""Keys of each method."""


def shipped() -> list[str]:
    """Return the names of the studies shipped with QuaRL."""
    return sorted(path.stem for path in SHIPPED.glob("*.yml"))


def read(name: str, agents: Path | None = None) -> Study:
    """Return the study in the file `name`, or the shipped one with that name.

    `agents` replaces the folder of the file's zoo: sources; for a shipped study that is the working directory.
    """
    is_shipped = name in shipped()
    path = SHIPPED / f"{name}.yml" if is_shipped else Path(name)
    if not is_shipped and not path.exists():
        raise QuarlError(f"no study file {name}{did_you_mean(name, shipped())} (QuaRL's own: {', '.join(shipped())})")
    document = read_yaml(path)
    at = Place(path, key_lines(path))
    checks.check_plain(document, at)
    study = Study(document=document, **checks.checked(Study, {"name": path.stem, **document}, at, "a study"))
    for entry in study.methods:
        if entry.method in ("ptq", "distill", "qat") and not any(other.method == "fp32" for other in study.methods):
            raise entry.at.wrong(f"{entry.method} is compared with fp32; add {{method: fp32}}")
        if entry.method not in ("fp32", "ptq") and any(policy.disturbance for policy in study.policies):
            raise entry.at.wrong(
                f"{entry.method} plays undisturbed episodes; a study with a disturbance has fp32 and ptq"
            )
    home = Path() if is_shipped else path.parent
    return dataclasses.replace(study, agents=agents or home / study.agents)


def _is_source(source: str) -> bool:
    kind, colon, rest = source.partition(":")
    return source == "train" or bool(colon and rest and kind in ("zoo", "hub", "file"))


def _options(value: Any, at: Place, *, known: Sequence[str], verb: str) -> Mapping[str, Any]:
    """Return the options of another command."""
    options: Mapping[str, Any] = mapping(value, at)
    checks.check_keys(options, known, at, verb)
    mapping(options.get("params", {}), at / "params")
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """The source of one agent, or of one for each seed."""

    at: Place
    algo: str = key(word)
    """ppo, a2c, dqn, ddpg, td3, sac or d4pg; "" accepts a file of any algorithm."""
    env: str = key(word)
    """Gymnasium id."""
    source: tuple[str, ...] = key(
        must(_is_source, "source {!r} is none of train, zoo:FOLDER, hub:ORG/NAME and file:PATH", words),
        default=(),
    )
    """The first available of these sources: train, zoo:FOLDER, hub:ORG/NAME or file:PATH."""
    na: str = key(partial(word, printable=False), default="")
    """Reason that its cells are not measured if no source is available."""
    n_timesteps: int | None = key(count, default=None)
    """Environment steps of its training; None means RL Zoo's."""
    params: Mapping[str, Any] = key(mapping, default_factory=dict)
    """Hyper-parameters of its training that override the tuned ones."""
    seeds: tuple[int, ...] | None = key(checks.seeds, default=None)
    """Seeds; None means the study's."""
    episodes: int | None = key(count, default=None)
    """Episodes of each of its cells; None means the study's."""
    train: Mapping[str, Any] = key(partial(_options, known=TRAIN, verb="quarl train"), default_factory=dict)
    """Options of `quarl train` for its trainings."""
    actorq: Mapping[str, Any] = key(
        partial(_options, known=OF_METHOD["actorq"], verb="quarl actorq"), default_factory=dict
    )
    """Keys of the methods actorq and throughput for this task, over those of the method."""
    name: str = key(word, default="")
    """Name of its source in tables; empty for the source itself."""
    normalize: str | None = key(word, default=None)
    """The statistics that normalized the agent's observations, or none; None means those beside it."""
    deterministic: bool = key(must(lambda value: type(value) is bool, "{name} must be true or false"), default=False)
    """True if it never samples its actions; otherwise it acts as RL Zoo plays such agents."""
    env_kwargs: Mapping[str, Any] = key(mapping, default_factory=dict)
    """Arguments of the environment that override those of its files, as --env-kwargs; the next three likewise."""
    wrapper: tuple[str, ...] = key(words, default=())
    """Wrappers that replace those of the files, as --wrapper."""
    frame_stack: int | None = key(count, default=None)
    """Number of stacked observations, as --frame-stack."""
    max_episode_steps: int | None = key(count, default=None)
    """Environment steps after which an episode is truncated, as --max-episode-steps."""
    disturbance: Mapping[str, float] = key(lambda value, at: _by_name(value, at), default_factory=dict)
    """Disturbances of its episodes with their levels, as {noise: 0.3}; the names are those of quarl robust --levels."""

    @property
    def identity(self) -> dict[str, Any]:
        """The options of EnvironmentConfig under `environment`, part of an agent's identity; empty without options."""
        said = {name: getattr(self, name) for name in OPTIONS} | {"env_kwargs": spelled(self.env_kwargs)}
        given = {name: value for name, value in said.items() if value}
        return {"environment": given} if given else {}

    @property
    def environment(self) -> EnvironmentOptions:
        """The same options, which override those of the agent's files."""
        return EnvironmentOptions.of(**EnvironmentConfig(**self.identity.get("environment", {})).environment())


def _policy(value: Any, at: Place) -> PolicyEntry:
    entry = PolicyEntry(at=at, **checks.checked(PolicyEntry, value, at, "a policy"))
    known = LEARNERS if "train" in entry.source else (*LEARNERS, *CONTRIB)
    if entry.algo not in known and (entry.algo or not all(source.startswith("file:") for source in entry.source)):
        raise (at / "algo").wrong(unknown_algorithm(entry.algo, known))
    if not entry.source and not entry.na:
        raise at.wrong("source is missing: train, zoo:FOLDER or hub:ORG/NAME, or na: and a reason")
    try:
        longest(entry.environment.max_episode_steps or entry.env_kwargs.get(LIMIT), None)
    except QuarlError as error:
        raise at.wrong(str(error)) from None
    return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The training time after which a run of ActorQ ends, censored."""

    minutes: float = key(number)
    """Training time of every run in minutes."""
    reference: str = key(word, default="")
    """The arm whose time bounds that of the others; none without it."""
    times: float = key(number, default=math.inf)
    """Limit of the other arms, as a multiple of the seconds in which the reference reached the target."""
    reference_minutes: float | None = key(number, default=None)
    """Limit in minutes of the reference, and of the others if it did not reach the target; None means `minutes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """Arms whose seconds are updates of another arm's run times their own measured seconds of an update."""

    precision: tuple[str, ...] = key(words)
    """The arms."""
    of: str = key(word)
    """The arm whose updates count."""
    seconds: float = key(number, default=60.0)
    """Length in seconds of the window in which seconds per update are measured."""


def _by_name(value: Any, at: Place) -> Mapping[str, float]:
    return {name: number(each, at / name) for name, each in mapping(value, at).items()}


def split_arm(arm: str) -> tuple[str, str]:
    """Return precision and engine of "int8", whose engine is LiteRT, or "torch-fp32"."""
    engine, dash, precision = arm.rpartition("-")
    if dash and engine != "torch":
        raise UnsupportedError(f"unknown engine in {arm!r}; arms are torch-fp32, fp32, fp16, int8 ... int2")
    return precision, engine or "litert"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """A method, with the precisions at which it is applied to every policy."""

    at: Place
    method: str
    """fp32, ptq, distill, qat, actorq, throughput, untrained or updates."""
    precision: tuple[str, ...] = key(words, default=("fp32",))
    """fp16, 8 or w4a8, and torch-fp32 of actors on PyTorch; fp32, untrained and updates have none."""
    edge_bits: str = key(lambda value, at: " ".join(words(value, at)), default=EDGES)
    """Bits of the first and last layers of precisions that request fewer, or same, as --edge-bits of quarl ptq."""
    scheme: tuple[str, ...] = key(words, default=("default",))
    """Schemes of weight quantization, as --scheme of quarl ptq."""
    mode: tuple[str, ...] = key(
        must(("dynamic", "static").__contains__, "mode must be dynamic or static, got {!r}", words),
        default=("dynamic",),
    )
    """Quantization of activations: dynamic or static."""
    fine_tune: float | None = key(
        must(lambda share: share <= 1, "fine_tune is a share of the agent's training, as in 0.1, got {:g}", number),
        default=None,
    )
    """Environment steps of quantization-aware training, as a share of the agent's own; None trains from scratch."""
    quant_delay: int | None = key(lambda value, at: count(value, at) if value else value, default=None)
    """Environment steps before fake quantization becomes active; None means half of the training."""
    dtypes: tuple[str, ...] = key(
        must(("fp32", "bf16", "fp16").__contains__, "dtypes are fp32, bf16 and fp16, got {!r}", words),
        default=("fp32", "bf16", "fp16"),
    )
    """Number types in which updates are timed; the others are compared with fp32."""
    seconds: float = key(number, default=60.0)
    """Seconds of updates in each number type, which are extrapolated from small batches if three do not fit; or of the
    window of training in which throughput is measured."""
    warm_up: float = key(partial(checks.real, above=-1e-9), default=10.0)
    """Seconds of training with actions of the policy before the window."""
    development_seed: int | None = key(count, default=None)
    """Options of actorq with several values are tried with this seed; each precision then trains with the study's seeds
    at its fastest run that reached the target. None: every seed has all values."""
    also_seeds: tuple[int, ...] | None = key(checks.seeds, default=None)
    """Only these seeds have other than the first values, and each arm ends there at its own time at the first; None:
    all seeds."""
    cap: Cap | None = dataclasses.field(
        metadata={"check": lambda value, at: Cap(**checks.checked(Cap, value, at, "cap"))}, default=None
    )
    """The training time of a run, as below; after a kill the run restarts, and its files are removed."""
    derived: Derived | None = dataclasses.field(
        metadata={"check": lambda value, at: Derived(**checks.checked(Derived, value, at, "derived"))}, default=None
    )
    """Arms that do not train, as below."""
    in_updates: Mapping[str, float] = key(_by_name, default_factory=dict)
    """Options and hyper-parameters that count environment steps, given in updates: a run is the same for each update at
    every samples_per_insert."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `quarl actorq` or `quarl distill`, or of `quarl train` for quantization-aware training. A list of
    values for an option of actorq or throughput makes a run for each."""

    def distillations(self) -> Iterator[DistillSpec]:
        """Yield the options of `quarl distill` for each mode."""
        for mode in self.mode:
            options: dict[str, Any] = {**self.options, "mode": mode}
            yield DistillSpec(bits=self.precision, edge_bits=self.edge_bits, **options)


def _method(value: Any, at: Place) -> MethodEntry:
    method = value.get("method") if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping) or method not in [*OF_METHOD]:
        raise at.wrong(f"unknown method {str(method)[:60]!r}; use {', '.join(OF_METHOD)}")
    declared = checks.checked(MethodEntry, value, at, method, ("method", *OF_METHOD[method]))
    if "precision" in OF_METHOD[method] and "precision" not in value:
        raise at.wrong(f"{method} needs precision: one, or a list")
    mapping(value.get("params", {}), at / "params")
    named = ("method", *declared)
    # lists of YAML are tuples in a command's options
    options = {name: tuple(said) if type(said) is list else said for name, said in value.items() if name not in named}
    entry = MethodEntry(at=at, method=method, **declared, options=options)
    try:
        for text in entry.precision:
            text, _ = split_arm(text) if method in ("actorq", "throughput") else (text, "")
            for scheme in entry.scheme:
                edges, qat = entry.edge_bits, method == "qat"
                QatSpec.parse(text, edges=edges) if qat else QuantSpec.parse(text, scheme=scheme, edges=edges)
        for recipe in entry.distillations() if method == "distill" else ():
            check_types(recipe)
            recipe.check()
    except QuarlError as error:
        raise at.wrong(str(error)) from None
    return entry


def _limits(value: Any, at: Place) -> Bounds:
    checks.check_keys(mapping(value, at), ("minutes", "memory_gb"), at, "limits")
    return dataclasses.replace(BOUNDS, **{name: number(bound, at / name) for name, bound in value.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The whole file."""

    name: str = key(word)
    """Name of the study in its report."""
    about: str = key(partial(word, printable=False), default="")
    """Its purpose, in a sentence or two for the report."""
    episodes: int = key(count, default=100)
    """Episodes of every cell; those of a seed are the same for all precisions."""
    margin: float = key(
        must(lambda margin: margin < 100, "margin is a percentage between 0 and 100, got {:g}", number),
        default=MARGIN_PCT,
    )
    """Acceptable loss of return, in percent of fp32's."""
    seeds: tuple[int, ...] = key(checks.seeds, default=(0,))
    """Seeds of trainings and episodes; a policy may have its own."""
    limits: Bounds = dataclasses.field(metadata={"check": _limits}, default=BOUNDS)
    """Time and memory of one cell, for its processes together; a cell that exceeds them fails."""
    agents: Path = dataclasses.field(metadata={"check": word}, default=Path())
    """The folder that zoo:FOLDER and file:PATH are relative to."""
    policies: tuple[PolicyEntry, ...] = key(partial(checks.listed, read=_policy))
    """The agents, each as below."""
    methods: tuple[MethodEntry, ...] = key(partial(checks.listed, read=_method))
    """The methods for each agent, as below."""
    document: Mapping[str, Any]
    """The file's contents."""
