"""Options of the verbs that reduce a policy's bits and judge the loss of return: ptq and distill."""

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
"""Default maximum number of episodes of --episodes auto."""


@dataclass(frozen=True, kw_only=True)
class PrecisionsConfig(ModelConfig, MeteredConfig):
    """Options that both verbs have."""

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("4",)
    """Precisions with 2 to 8-bit weights: an integer, wNaM, or intNeK for K bits in the first and last layers."""
    edge_bits: Edges = EDGES
    """Minimum bits of the first and last layers; same gives all layers one width."""
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantized per row at run time, or on grids calibrated beforehand."""
    episodes: NumEpisodes = 100
    """Fresh episodes at every precision, on which the verdict is based; auto plays until there is a verdict."""
    max_episodes: Annotated[int | None, shown("N", default=f"{MOST_EPISODES}, of --auto 1000")] = None
    """Maximum number of episodes for --episodes auto, or for --auto to show a loss; increase it if episodes are cheap
    and their returns scatter.
    """
    margin: Annotated[float, shown("PERCENT")] = 5.0
    """Acceptable loss of return, in percent of fp32's, for the non-inferiority verdict."""
    auto: Annotated[Flag, QUANTISATION] = False
    """Choose the bits of each layer instead, 2 to 8: the fewest that are shown to lose less than --max-loss."""
    max_loss: Annotated[str, shown("PERCENT"), QUANTISATION] = "2%"
    """Loss of return that --auto allows, in percent of fp32's."""

    def check(self) -> None:
        super().check()
        at_least_one(episodes=self.episodes, max_episodes=self.max_episodes)
        if not self.auto and self.episodes != "auto":
            self.refuse(("max_episodes",), "requires --episodes auto", "add that, or drop it")
        check_margin(self.margin)
        if not self.bits:
            raise QuarlError("--bits requires at least one precision, as in --bits 4")
        self.specs()
        if not self.auto:
            self.refuse(("max_loss", "minimize"), "requires --auto", "add that, or drop it")
            return
        self.refuse(("bits", "edge_bits", "margin"), "conflicts with --auto, which chooses bits by --max-loss")
        if self.episodes == "auto":
            raise QuarlError("--episodes auto conflicts with --auto, which plays as many as it needs: drop it")
        if math.isnan(self.loss_pct):
            raise QuarlError(f"--max-loss is {self.max_loss[:60]!r}; use a percentage between 0 and 100, as in 2%")
        check_margin(self.loss_pct, "--max-loss")

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
        return [QuantSpec.parse(bits, scheme=scheme, mode=self.mode, edges=self.edge_bits) for bits in words]

    @property
    def most_episodes(self) -> int:
        """Maximum number of episodes at each precision."""
        most = self.max_episodes or (1_000 if self.auto else MOST_EPISODES)
        return most if self.auto or self.episodes == "auto" else self.episodes


@dataclass(frozen=True, kw_only=True)
class PtqConfig(PrecisionsConfig):
    """Quantize a trained policy at several precisions, and measure the costs and gains of each."""

    verb: ClassVar[str] = "ptq"
    examples = (
        "quarl ptq logs/dqn/CartPole-v1_1 -o out",
        "quarl ptq ppo HalfCheetahBulletEnv-v0 -f rl-trained-agents --bits fp32 fp16 8 4 -o cheetah",
    )

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("fp32", "fp16", *"8765432")
    """Precisions: fp32, fp16, bf16, an integer 2..32, wNaM for N-bit weights with M-bit activations, or intNeK for K
    bits in the first and last layers.
    """
    scheme: Annotated[tuple[str, ...], shown("NAME ...", meaning=SCHEME_HELP), QUANTISATION] = ("default",)
    engine: Annotated[EngineName, QUANTISATION] = "litert"
    """Inference engine that runs the policy."""
    workers: Annotated[int, ADVANCED] = 1
    """Number of processes that share the episodes; useful if environment steps are slow."""
    minimize: Annotated[Literal["bytes", "latency"], QUANTISATION] = "bytes"
    """Quantity that --auto minimizes; latency is measured on this machine, with 8 and 4 bits, which have kernels."""
    output: Output = Path("quarl-ptq")
    """Folder for rows.json, rows.csv, the figures, report.html and the quantized policies."""

    def check(self) -> None:
        super().check()
        at_least_one(workers=self.workers)
        if not self.scheme:
            raise QuarlError("--scheme requires a value, as in --scheme default")
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
class DistillConfig(PrecisionsConfig):
    """Distill a trained policy into its own quantized version, on the states that it reaches and without reward."""

    verb: ClassVar[str] = "distill"
    examples = (
        "quarl distill logs/dqn/CartPole-v1_1 --bits 4 2 -o small",
        "quarl distill logs/dqn/CartPole-v1_1 --auto --max-loss 2% -o mixed",
    )

    rounds: Annotated[int, TRAINING] = 8
    """Maximum number of rounds. A round makes updates, then checks the return, which ends the rounds once the loss is
    shown to be below the margin, then collects states of the quantized policy.
    """
    updates: Annotated[int, TRAINING] = 1_000
    """Gradient steps of a round."""
    states: Annotated[int, TRAINING] = 1_900
    """New states after each round."""
    validation: Annotated[int, shown("EPISODES"), TRAINING] = 40
    """Episodes of a check of the return, which selects the snapshot."""
    budget: Annotated[str | None, shown("N|MINUTESm", default="no bound"), TRAINING] = None
    """Budget of each precision: updates, as in 5000, or minutes, as in 10m; the last round is one that fits."""
    observations: Annotated[Path | None, shown("FILE"), TRAINING] = None
    """Recorded observations, .npy or .npz, instead of an environment: training uses only these states, and no return is
    measured.
    """
    resume: Flag = False
    """Resume from the last finished round of the same command."""
    output: Output = Path("quarl-distill")
    """Folder for rows.json, rows.csv, the curve, report.html and the quantized policies."""

    def check(self) -> None:
        super().check()
        at_least_one(**{name: getattr(self, name) for name in ("rounds", "updates", "states", "validation")})
        if self.auto:
            self.refuse(("observations",), "conflicts with --auto, which chooses by return")
        if self.observations is not None:
            unplayed = ("env", "episodes", "validation", "states", *OPTIONS)
            self.refuse(unplayed, "requires an environment, and --observations replaces it")
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
