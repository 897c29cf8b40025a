"""Options of the verbs that bring a policy into fewer bits and judge what return that costs: ptq and distill."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from quarl.config.base import (
    SCHEME_HELP,
    Edges,
    EngineName,
    Flag,
    MeteredConfig,
    NumEpisodes,
    Output,
    at_least_one,
    check_margin,
)
from quarl.config.environment import OPTIONS
from quarl.config.groups import ADVANCED, QUANTISATION, TRAINING, shown
from quarl.config.trained_policy import ModelConfig
from quarl.errors import QuarlError
from quarl.quant.spec import EDGES, Mode, QuantSpec

MOST_EPISODES = 400
"""Of --episodes auto, where --max-episodes does not say it."""


@dataclass(frozen=True, kw_only=True)
class PrecisionsConfig(ModelConfig, MeteredConfig):
    """What both share."""

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("4",)
    """Precisions with 2 to 8-bit weights: an integer, wNaM, or intNeK for K bits in the first and last layers."""
    edge_bits: Edges = EDGES
    """Bits of the first and last layers of precisions that ask for fewer, or same: one width in all layers."""
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantised per row at run time, or on grids calibrated beforehand."""
    episodes: NumEpisodes = 100
    """Fresh episodes at every precision, which the verdict is about, or auto: until there is one."""
    max_episodes: Annotated[int | None, shown("N", default=f"{MOST_EPISODES}, of --auto 1000")] = None
    """Episodes at most that --episodes auto plays, or --auto to show a loss; more where they are cheap and scatter."""
    margin: Annotated[float, shown("PERCENT")] = 5.0
    """Loss of return, of fp32's, that is still acceptable: what the non-inferiority verdict is about."""
    auto: Annotated[Flag, QUANTISATION] = False
    """Choose the bits of each layer, 2 to 8, instead: the fewest that are shown to lose less than --max-loss."""
    max_loss: Annotated[str, shown("PERCENT"), QUANTISATION] = "2%"
    """Loss of return, of fp32's, that --auto allows."""

    def check(self) -> None:
        super().check()
        at_least_one(episodes=self.episodes, max_episodes=self.max_episodes)
        if not self.auto and self.episodes != "auto":
            self.refuse(("max_episodes",), "is the most of --episodes auto", "add that, or drop it")
        check_margin(self.margin)
        if not self.bits:
            raise QuarlError("--bits needs at least one precision, as in --bits 4")
        self.specs()
        if not self.auto:
            self.refuse(("max_loss", "minimize"), "is for --auto", "add that, or drop it")
            return
        self.refuse(("bits", "edge_bits", "margin"), "does not go with --auto, which chooses bits by --max-loss")
        if self.episodes == "auto":
            raise QuarlError("--episodes auto does not go with --auto, which plays as many as it takes: drop it")
        if math.isnan(self.loss_pct):
            raise QuarlError(f"--max-loss is {self.max_loss[:60]!r}; use a percentage between 0 and 100, as in 2%")
        check_margin(self.loss_pct, "--max-loss")

    @property
    def loss_pct(self) -> float:
        """Return --max-loss as a number of percent; NaN if it is not one."""
        word = self.max_loss.removesuffix("%")
        return float(word) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", word) else math.nan

    def specs(self) -> list[QuantSpec]:
        """Every precision once, in order; with --auto int8, which the search begins at."""
        return list(dict.fromkeys(self._parsed("default")))

    def _parsed(self, scheme: str) -> list[QuantSpec]:
        """What --bits names, under a scheme."""
        words = ("8",) if self.auto else self.bits
        return [QuantSpec.parse(bits, scheme=scheme, mode=self.mode, edges=self.edge_bits) for bits in words]

    @property
    def most_episodes(self) -> int:
        """At each precision."""
        most = self.max_episodes or (1_000 if self.auto else MOST_EPISODES)
        return most if self.auto or self.episodes == "auto" else self.episodes


@dataclass(frozen=True, kw_only=True)
class PtqConfig(PrecisionsConfig):
    """Quantise a trained policy at several precisions and measure what each costs and gains."""

    verb: ClassVar[str] = "ptq"
    examples = (
        "quarl ptq logs/dqn/CartPole-v1_1 -o out",
        "quarl ptq ppo HalfCheetahBulletEnv-v0 -f rl-trained-agents --bits fp32 fp16 8 4 -o cheetah",
    )

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("fp32", "fp16", *"8765432")
    """Precisions: fp32, fp16, bf16, an integer 2..32, wNaM for N-bit weights with M-bit activations, or intNeK for K
    bits in the first and last layers."""
    scheme: Annotated[tuple[str, ...], shown("NAME ...", meaning=SCHEME_HELP), QUANTISATION] = ("default",)
    engine: Annotated[EngineName, QUANTISATION] = "litert"
    """What runs the policy."""
    workers: Annotated[int, ADVANCED] = 1
    """Processes that share the episodes; worth it where a step of the environment is slow."""
    minimize: Annotated[Literal["bytes", "latency"], QUANTISATION] = "bytes"
    """What --auto makes small; latency as it is measured here, with 8 and 4 bits, for which there are kernels."""
    output: Output = Path("quarl-ptq")
    """Folder for rows.json, rows.csv, the figures, report.html and the quantised policies."""

    def check(self) -> None:
        super().check()
        at_least_one(workers=self.workers)
        if not self.scheme:
            raise QuarlError("--scheme needs a name, as in --scheme default")
        if self.auto and len(self.scheme) > 1:
            raise QuarlError(f"--auto takes one --scheme, got {' '.join(self.scheme)}: keep one")

    def specs(self) -> list[QuantSpec]:
        """Every precision under every scheme once, in order; float precisions, which have none, under the first."""
        parsed = (spec for name in self.scheme for spec in self._parsed(name))
        specs = dict.fromkeys(spec for spec in parsed if spec.float_type is None or spec.scheme.name == self.scheme[0])
        return list(specs)

    @property
    def num_episodes(self) -> int | None:
        """Of all precisions together, fp32 among them, at most; None where it shows only on the way."""
        count = 1 + sum(spec.float_type != "fp32" for spec in self.specs())
        return None if self.auto else self.most_episodes * count


@dataclass(frozen=True, kw_only=True)
class DistillConfig(PrecisionsConfig):
    """Distil a trained policy into its own quantised self, on the states that it reaches and without reward."""

    verb: ClassVar[str] = "distill"
    examples = (
        "quarl distill logs/dqn/CartPole-v1_1 --bits 4 2 -o small",
        "quarl distill logs/dqn/CartPole-v1_1 --auto --max-loss 2% -o mixed",
    )

    rounds: Annotated[int, TRAINING] = 8
    """Rounds at most: updates, then a look at the return, which ends them where it is shown to lose less than the
    margin, then states that the quantised policy reaches."""
    updates: Annotated[int, TRAINING] = 1_000
    """Gradient steps of a round."""
    states: Annotated[int, TRAINING] = 1_900
    """New states after each round."""
    validation: Annotated[int, shown("EPISODES"), TRAINING] = 40
    """Episodes of a look at the return, which chooses the snapshot."""
    budget: Annotated[str | None, shown("N|MINUTESm", default="no bound"), TRAINING] = None
    """Of a precision: updates, as in 5000, or minutes, as in 10m; the last round is one that fits."""
    observations: Annotated[Path | None, shown("FILE"), TRAINING] = None
    """Recorded observations, .npy or .npz, in place of an environment: only these states are learned from, and no
    return is measured."""
    resume: Flag = False
    """Go on from the last finished round of the same command, which was ended."""
    output: Output = Path("quarl-distill")
    """Folder for rows.json, rows.csv, the curve, report.html and the quantised policies."""

    def check(self) -> None:
        super().check()
        at_least_one(**{name: getattr(self, name) for name in ("rounds", "updates", "states", "validation")})
        if self.auto:
            self.refuse(("observations",), "does not go with --auto, which chooses by return")
        if self.observations is not None:
            unplayed = ("env", "episodes", "validation", "states", *OPTIONS)
            self.refuse(unplayed, "is about an environment, and with --observations there is none")
        self.bounds()

    def bounds(self) -> tuple[int, float]:
        """Rounds at most, and minutes."""
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
