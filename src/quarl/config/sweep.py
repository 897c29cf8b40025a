"""Options of `quarl sweep`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from quarl.config.base import MeteredConfig, Normalize, Output, Steps, check_folder
from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.config.train import QAT_OPTIONS, TrainConfig
from quarl.errors import QuarlError
from quarl.fields import AT_LEAST_ONE, ENVIRONMENT, NOT_NEGATIVE, PERCENTAGE, QUANTISATION, SOME, TRAINING, shown
from quarl.quant.spec import EDGES, QatSpec, QuantSpec
from quarl.specs import SEED, Edges, Flag

OF_BOTH = ("algo", "env", "params", "trained_agent", "normalize", *OPTIONS)
"""Options that sweep and training share."""
OF_TRAINING = ("n_timesteps", "params", "eval_freq")


@dataclass(frozen=True, kw_only=True)
class SweepConfig(EnvironmentConfig, MeteredConfig):
    """Train in float32 and for every precision, quantize the float32 agents, and compare: return against bits."""

    verb: ClassVar[str] = "sweep"
    examples = ("quarl sweep --algo a2c --env CartPole-v1 --bits 8 4 2 --seeds 3 -o bits",)

    device: ClassVar[str] = "auto"
    """Device of the trainings."""

    algo: Annotated[str, shown("NAME")] = "dqn"
    """Learner: ppo, a2c, dqn, ddpg, td3, sac or d4pg."""
    env: Annotated[str, shown("ID"), ENVIRONMENT] = "CartPole-v1"
    """Gymnasium id of the environment; my_module:MyEnv-v0 first imports my_module, which registers it."""
    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION, SOME] = ("8", "7", "6", "5", "4", "3", "2")
    """Precisions: N for N-bit weights with 8-bit activations, or wNaM."""
    edge_bits: Edges = EDGES
    """Minimum bits of the first and last layers; same gives all layers one width."""
    methods: Annotated[tuple[Literal["ptq", "distill", "qat"], ...], shown("NAME ..."), SOME] = ("ptq", "qat")
    """Methods: ptq quantizes the float32 agents; distill also trains the results to imitate them, minutes for each; qat
    trains for the precision.
    """
    seeds: Annotated[int, AT_LEAST_ONE] = 3
    """Number of agents of every kind, trained with consecutive seeds from --seed."""
    n_timesteps: Steps = None
    """Environment steps of a training; with --trained-agent, those of fine-tuning."""
    quant_delay: Annotated[int | None, shown("N", default="half of the run"), QUANTISATION] = None
    """Environment steps before fake quantization begins."""
    qat_output_bits: Annotated[int | None, shown("N", default="as the first"), QUANTISATION] = None
    """Bits of the last layer's weights in quantization-aware training."""
    qat_mid_tread: Annotated[Flag, QUANTISATION] = False
    """Give weights of 2 and 3 bits a level at 0 in quantization-aware training."""
    params: Annotated[tuple[str, ...], shown("NAME:VALUE ...", "--hyperparams"), TRAINING] = ()
    """Hyper-parameters that override the tuned ones, as for quarl train."""
    trained_agent: Annotated[Path | None, shown("ZIP", "-i"), TRAINING] = None
    """Use this agent instead of training in float32: ptq quantizes it, qat fine-tunes it."""
    normalize: Normalize = None
    """VecNormalize statistics that the trained agent observed with, or none."""
    eval_freq: Annotated[int | None, shown("N", default="a twentieth of the run"), TRAINING, AT_LEAST_ONE] = None
    """Environment steps between the evaluations that choose each training's best agent."""
    episodes: Annotated[int, AT_LEAST_ONE] = 100
    """Episodes of every row; all rows of a seed play the same ones."""
    margin: Annotated[float, shown("PERCENT"), PERCENTAGE] = 5.0
    """Acceptable loss of return, in percent of fp32's."""
    jobs: Annotated[int, AT_LEAST_ONE] = 1
    """Number of simultaneous trainings, each on one core."""
    minutes: Annotated[float, shown("FLOAT", default="no bound"), NOT_NEGATIVE] = math.inf
    """Minutes after which no new training starts; repeat the command to continue."""
    seed: Annotated[int, SEED] = 0
    """First seed."""
    output: Output = Path("quarl-sweep")
    """Folder of the study, its report and the agents."""

    def check(self) -> None:
        super().check()
        if "qat" not in self.methods:
            self.refuse(QAT_OPTIONS, "requires --methods qat")
            if self.trained_agent is not None:
                self.refuse(OF_TRAINING, "requires a training, and --trained-agent with --methods ptq has none")
        named: dict[str, str] = {}
        for bits in self.bits:
            precision = self.precision(bits)
            if precision in named:
                raise QuarlError(f"--bits {named[precision]} and {bits} are the same precision: keep one")
            named[precision] = bits
            QuantSpec.parse(precision)
            self.training(self.seed, bits, self.n_timesteps, self.output).check()
        check_folder(self.output)

    def precision(self, bits: str) -> str:
        """Return the full name of a precision, such as w4a8e8."""
        return QatSpec.parse(bits, edges=self.edge_bits).precision

    def training(self, seed: int, bits: str | None, n_timesteps: int | None, folder: Path) -> TrainConfig:
        """Return one training's options.

        Args:
            seed: Seed of the training.
            bits: Precision; None trains in float32.
            n_timesteps: Environment steps; None if not known yet.
            folder: Folder of the run.
        """
        qat = () if bits is None else [field.name for field in fields(self) if field.name in QAT_OPTIONS]
        return TrainConfig(
            n_timesteps=n_timesteps,
            eval_freq=max((n_timesteps or 0) // 20, 1) if self.eval_freq is None else self.eval_freq,
            folder=folder,
            seed=seed,
            threads=1,
            qat=None if bits is None else self.precision(bits),
            edge_bits=TrainConfig.edge_bits if bits is None else "same",
            **{name: getattr(self, name) for name in (*OF_BOTH, *qat)},
        )
