"""Options of the methods: frozen values, created from the keywords in Python, and extended by the options of verbs.

Each field defines the group, the value and the help text of its option, as a row's fields define their columns. Nothing
here imports numpy, because `--help` shows these fields.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, cast, get_args, get_origin, get_type_hints

from tyro.conf import FlagCreatePairsOff

from quarl.errors import QuarlError
from quarl.fields import (
    ABOVE_ZERO,
    ADVANCED,
    AT_LEAST_ONE,
    ENERGY,
    PERCENTAGE,
    QUANTISATION,
    SOME,
    TRAINING,
    Bound,
    shown,
)
from quarl.quant import schemes
from quarl.quant.spec import EDGES, SCHEMES, Mode, QuantSpec

EngineName = Literal["litert", "onnx", "torch", "reference"]
SCHEME_HELP = f"How weights become codes: {', '.join(SCHEMES)}; or your own, as in my_module:my_scheme."
Flag = FlagCreatePairsOff[bool]
Edges = Annotated[str, shown("N|same"), QUANTISATION]
NumEpisodes = Annotated[int | Literal["auto"], shown("N|auto"), AT_LEAST_ONE]
LEARNERS = ("ppo", "a2c", "dqn", "ddpg", "td3", "sac", "d4pg")
"""Algorithms that are trained here."""
SEEDS = 2**32
"""Number of seeds that every generator accepts."""
SEED = Bound("must be between 0 and 2**32 - 1", lambda number: 0 <= number < SEEDS)
WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
"""Description of an option's value, by type."""
METERED = ("energy", "energy_watts", "energy_country")
"""Options of EnergySpec."""
PATH = "path"
"""Envelope of the recorded observations alone."""
VISITED = re.compile(r"visited\*([0-9]{1,6}(?:\.[0-9]{1,6})?)")
ROWS = (".npy", ".npz", ".csv")
"""Suffixes of files of observations."""
MOST_EPISODES = 400
"""Default maximum number of episodes of --episodes auto."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A value with its own checks."""

    def check(self) -> None:
        """Refuse values out of range, before anything is read or run."""
        for name, bound in _bounds(cast(Any, type(self))):
            value = getattr(self, name)
            if isinstance(value, int | float | tuple) and not bound.holds(value):
                got = "none" if value == () else f"{value:.15g}"
                raise QuarlError(f"--{name.replace('_', '-')} {bound.words}, got {got}{bound.advice}")

    def refuse(self, names: Sequence[str], why: str, fix: str = "drop it") -> None:
        """Refuse options that would have no effect.

        Args:
            names: Names of the options' fields.
            why: Reason, for the error message.
            fix: Remedy, for the error message.
        """
        for field in dataclasses.fields(self):
            if field.name in names and getattr(self, field.name) != field.default:
                raise QuarlError(f"--{field.name.replace('_', '-')} {why}: {fix}")


@cache
def _bounds(kind: type[Any]) -> list[tuple[str, Bound]]:
    """Return the bounds of the class and its bases, by the name of the field."""
    hints = (inspect.get_annotations(base, eval_str=True) for base in kind.__mro__)
    named = (
        (name, extra) for each in hints for name, hint in each.items() for extra in getattr(hint, "__metadata__", ())
    )
    return [(name, extra) for name, extra in named if isinstance(extra, Bound)]


@dataclass(frozen=True, kw_only=True)
class EnergySpec(Spec):
    """Options of the energy measurement."""

    energy: Annotated[Flag, ENERGY] = False
    """Also measure joules and grams of CO2, and report the method."""
    energy_watts: Annotated[float | None, shown("W", default="counters, or codecarbon's guess"), ENERGY, ABOVE_ZERO] = (
        None
    )
    """Watts of a busy core: energy is processor time times this value."""
    energy_country: Annotated[str | None, shown("ISO", default="world average"), ENERGY] = None
    """Country of the electricity, such as FRA or USA, for its grams of CO2 per kilowatt-hour."""

    def check(self) -> None:
        super().check()
        if not self.energy:
            self.refuse(METERED, "requires --energy", "add it")


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec(Spec):
    """Precisions of one policy, compared with float32 by return."""

    seed: Annotated[int, SEED] = 0
    """Seed of the episodes; episode k starts from the same state at every precision."""
    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION, SOME] = ("4",)
    """Precisions with 2 to 8-bit weights: an integer, wNaM, or intNeK for K bits in the first and last layers."""
    edge_bits: Edges = EDGES
    """Minimum bits of the first and last layers; same gives all layers one width."""
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantized per row at run time, or on grids calibrated beforehand."""
    symmetric_activations: Annotated[Flag, QUANTISATION] = False
    """Give the grids of static mode zero point 0, as TensorRT requires; ReLU, sigmoid and pixels then have half of the
    codes.
    """
    episodes: NumEpisodes = 100
    """Fresh episodes at every precision, on which the verdict is based; auto plays until there is a verdict."""
    max_episodes: Annotated[int | None, shown("N", default=f"{MOST_EPISODES}, of --auto 1000"), AT_LEAST_ONE] = None
    """Maximum number of episodes for --episodes auto, or for --auto to show a loss; increase it if episodes are cheap
    and their returns scatter.
    """
    margin: Annotated[float, shown("PERCENT"), PERCENTAGE] = 5.0
    """Acceptable loss of return, in percent of fp32's, for the non-inferiority verdict."""
    success_margin: Annotated[float, shown("POINTS"), PERCENTAGE] = 5.0
    """Acceptable loss of successes, in percentage points, if the environment reports `is_success`; the verdict is the
    worse of those on return and on success.
    """
    auto: Annotated[Flag, QUANTISATION] = False
    """Choose the bits of each layer instead, 2 to 8: the fewest that are shown to lose less than --max-loss."""
    max_loss: Annotated[str, shown("PERCENT"), QUANTISATION] = "2%"
    """Loss of return that --auto allows, in percent of fp32's."""

    def check(self) -> None:
        super().check()
        if not self.auto and self.episodes != "auto":
            self.refuse(("max_episodes",), "requires --episodes auto", "add that, or drop it")
        if self.mode == "dynamic":
            self.refuse(("symmetric_activations",), "requires --mode static", "add that, or drop it")
        self.specs()
        if not self.auto:
            self.refuse(("max_loss", "minimize"), "requires --auto", "add that, or drop it")
            return
        self.refuse(("bits", "edge_bits", "margin"), "conflicts with --auto, which chooses bits by --max-loss")
        if self.episodes == "auto":
            raise QuarlError("--episodes auto conflicts with --auto, which plays as many as it needs: drop it")
        if not 0 < self.loss_pct < 100:
            raise QuarlError(f"--max-loss is {self.max_loss[:60]!r}; use a percentage between 0 and 100, as in 2%")

    @property
    def loss_pct(self) -> float:
        """Return --max-loss as a number of percent; NaN if it is not one."""
        word = self.max_loss.removesuffix("%")
        return float(word) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", word) else math.nan

    def specs(self) -> list[QuantSpec]:
        """Return every precision once, in order; with --auto, int8, the start of the search."""
        return list(dict.fromkeys(self._parsed("default")))

    def _parsed(self, scheme: str) -> list[QuantSpec]:
        """Return the precisions of --bits under a scheme."""
        words = ("8",) if self.auto else self.bits
        told: Any = {"scheme": scheme, "mode": self.mode, "edges": self.edge_bits}
        return [QuantSpec.parse(bits, **told, symmetric_activations=self.symmetric_activations) for bits in words]

    @property
    def most_episodes(self) -> int:
        """Maximum number of episodes at each precision."""
        most = self.max_episodes or (1_000 if self.auto else MOST_EPISODES)
        return most if self.auto or self.episodes == "auto" else self.episodes


@dataclass(frozen=True, kw_only=True)
class PtqSpec(ComparisonSpec):
    """Post-training quantization of one policy at several precisions, or with bits chosen for each layer."""

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("fp32", "fp16", *"8765432")
    """Precisions: fp32, fp16, bf16, an integer 2..32, wNaM for N-bit weights with M-bit activations, or intNeK for K
    bits in the first and last layers.
    """
    scheme: Annotated[tuple[str, ...], shown("NAME ...", meaning=SCHEME_HELP), QUANTISATION, SOME] = ("default",)
    engine: Annotated[EngineName, QUANTISATION] = "litert"
    """Inference engine that runs the policy."""
    workers: Annotated[int, ADVANCED, AT_LEAST_ONE] = 1
    """Number of processes that share the episodes; useful if environment steps are slow."""
    minimize: Annotated[Literal["bytes", "latency"], QUANTISATION] = "bytes"
    """Quantity that --auto minimizes; latency is measured on this machine, with 8 and 4 bits, which have kernels."""

    def check(self) -> None:
        for name in self.scheme:
            schemes.typed_by_user(name)
        super().check()
        if self.auto and len(self.scheme) > 1:
            raise QuarlError(f"--auto requires a single --scheme, got {' '.join(self.scheme)}: keep one")

    def specs(self) -> list[QuantSpec]:
        """Return every precision under every scheme once, in order; float precisions only under the first scheme."""
        parsed = (spec for name in self.scheme for spec in self._parsed(name))
        specs = dict.fromkeys(spec for spec in parsed if spec.float_type is None or spec.scheme.name == self.scheme[0])
        return list(specs)

    @property
    def num_episodes(self) -> int | None:
        """Maximum number of episodes of all precisions with fp32; None if it is known only during the run."""
        count = 1 + sum(spec.float_type != "fp32" for spec in self.specs())
        return None if self.auto else self.most_episodes * count


@dataclass(frozen=True, kw_only=True)
class DistillSpec(ComparisonSpec):
    """Distillation of one policy into each precision."""

    rounds: Annotated[int, TRAINING, AT_LEAST_ONE] = 8
    """Maximum number of rounds. A round makes updates, then checks the return, which ends the rounds once the loss is
    shown to be below the margin, then collects states of the quantized policy.
    """
    updates: Annotated[int, TRAINING, AT_LEAST_ONE] = 1_000
    """Gradient steps of a round."""
    states: Annotated[int, TRAINING, AT_LEAST_ONE] = 1_900
    """New states after each round."""
    validation: Annotated[int, shown("EPISODES"), TRAINING, AT_LEAST_ONE] = 40
    """Episodes of a check of the return, which selects the snapshot."""
    budget: Annotated[str | None, shown("N|MINUTESm", default="no bound"), TRAINING] = None
    """Budget of each precision: updates, as in 5000, or minutes, as in 10m; the last round is one that fits."""

    def check(self) -> None:
        super().check()
        self.bounds()

    def bounds(self) -> tuple[int, float]:
        """Return the maximum number of rounds, and of minutes."""
        if self.budget is None:
            return self.rounds, math.inf
        if match := re.fullmatch(r"([0-9]{1,9})(m?)", self.budget):
            rounds = self.rounds if match[2] else min(int(match[1]) // self.updates, self.rounds)
            if rounds and int(match[1]):
                return rounds, int(match[1]) if match[2] else math.inf
        raise QuarlError(
            f"--budget is {self.budget[:60]!r}; use a round of {self.updates:,} updates or more, or minutes, as in 10m"
        )

    def _parsed(self, scheme: str) -> list[QuantSpec]:
        specs = super()._parsed(scheme)
        for bits, spec in zip(self.bits, specs, strict=False):  # int8 alone with --auto
            if spec.float_type is not None or spec.weight_bits > 8 or spec.activation_bits is None:
                raise QuarlError(f"--bits {bits}: distillation is for weights of 2 to 8 bits with integer activations")
        return specs


@dataclass(frozen=True, kw_only=True)
class CompareSpec(Spec):
    """Agents, compared with one of them by return."""

    seed: Annotated[int, SEED] = 0
    """Seed of the episodes; episode k starts from the same state for every agent."""
    baseline: Annotated[str | None, shown("NAME", default="the first")] = None
    """Name of the agent with which the others are compared."""
    episodes: Annotated[NumEpisodes, Bound("must be at least 2", lambda number: number >= 2)] = 100
    """Episodes of every agent, from the same starts; auto plays until there is a verdict."""
    max_episodes: Annotated[int | None, shown("N", default=str(MOST_EPISODES)), AT_LEAST_ONE] = None
    """Maximum number of episodes for --episodes auto; increase it if episodes are cheap and their returns scatter."""
    margin: Annotated[float, shown("PERCENT"), PERCENTAGE] = 5.0
    """Acceptable loss of return, in percent of the baseline's, for the non-inferiority verdict."""
    success_margin: Annotated[float, shown("POINTS"), PERCENTAGE] = 5.0
    """Acceptable loss of successes, in percentage points, if the environment reports `is_success`; the verdict is the
    worse of those on return and on success.
    """
    workers: Annotated[int, ADVANCED, AT_LEAST_ONE] = 1
    """Number of processes that share the episodes; useful if environment steps are slow."""

    def check(self) -> None:
        super().check()
        if self.episodes != "auto":
            self.refuse(("max_episodes",), "requires --episodes auto", "add that, or drop it")

    @property
    def most_episodes(self) -> int:
        """Maximum number of episodes of each agent."""
        return self.max_episodes or MOST_EPISODES if self.episodes == "auto" else self.episodes


def visited_factor(envelope: str) -> float | None:
    """Return K of the envelope visited*K; None for any other."""
    match = VISITED.fullmatch(envelope)
    return float(match[1]) if match else None


def check_envelope(envelope: str, mode: Mode | None, *, files: bool = True) -> None:
    """Raise QuarlError unless --envelope names an envelope, and the mode has grids to cover it.

    Args:
        envelope: Word of the option.
        mode: Mode of the activations; None if it depends on the policy.
        files: The word may name a file of rows.
    """
    factor = visited_factor(envelope)
    if envelope not in (PATH, "env") and (factor or 0) < 1 and not (files and envelope.lower().endswith(ROWS)):
        rows = f"or a {', '.join(ROWS[:-1])} or {ROWS[-1]} file" if files else "or rows of observations"
        raise QuarlError(f"--envelope is {envelope[:60]!r}; use path, env, visited*K with K of at least 1, {rows}")
    if envelope != PATH and mode == "dynamic":
        raise QuarlError("--envelope requires --mode static: add that, or drop it")


def check_types(config: Any) -> None:
    """Raise QuarlError for an option whose value has the wrong type: the value may come from a study file."""
    for name, hint in get_type_hints(type(config)).items():
        value, kinds = getattr(config, name), get_args(hint) or (hint,)
        if get_origin(hint) is ClassVar:
            continue
        if get_origin(hint) is tuple:
            words = isinstance(value, tuple) and all(type(word) is kinds[0] for word in value)
            wanted = None if words else "a list of words"
        elif get_origin(hint) is Literal:
            wanted = None if value in kinds else " or ".join(kinds)
        else:
            wanted = None if _is_one(value, kinds) else next((WANTED[kind] for kind in kinds if kind in WANTED), None)
        if wanted is not None:
            raise QuarlError(f"--{name.replace('_', '-')} is {str(value)[:60]!r}; use {wanted}")


def _is_one(value: Any, kinds: tuple[Any, ...]) -> bool:
    words = [word for kind in kinds for word in get_args(kind)]
    return type(value) in kinds or (type(value) is int and float in kinds) or value in words
