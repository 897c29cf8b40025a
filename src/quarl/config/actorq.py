"""Options of `quarl actorq`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from quarl.config.base import Output, check_folder, layer_widths
from quarl.config.learner_options import LearnerOptions
from quarl.errors import QuarlError, UnsupportedError
from quarl.fields import ADVANCED, AT_LEAST_ONE, ENVIRONMENT, QUANTISATION, TRAINING, shown
from quarl.quant.spec import QuantSpec
from quarl.specs import Flag, check_types

ALGORITHMS = ("dqn", "ddpg", "td3", "sac", "d4pg")
STEPS = 100_000
"""Default number of environment steps."""
GIVEN_ONCE = ("n_steps", "batch_size")
"""Hyper-parameters with an option of their own."""
ON_POLICY = ("ppo", "a2c")
"""Algorithms of `quarl train` that learn only from steps of their current policy."""


@dataclass(frozen=True, kw_only=True)
class ActorQConfig(LearnerOptions):
    """Train with a full-precision learner and quantized actor processes."""

    verb: ClassVar[str] = "actorq"
    examples = (
        "quarl actorq --algo dqn -n 50000 --actors 2 --actor-precision int8 -o runs/cartpole",
        "quarl actorq --plan",
    )
    learners: ClassVar[tuple[str, ...]] = ALGORITHMS
    new: ClassVar[tuple[str, ...]] = (*LearnerOptions.new, "output", "plan")
    free: ClassVar[tuple[str, ...]] = (
        *(*LearnerOptions.free, "updates", "target", "save_replay_buffer", "actors", "min_actors", "max_staleness"),
        *("env_timeout", "learner_threads", "nice", "distill", "cluster", "nodes", "actors_per_node"),
    )

    algo: Annotated[str, shown("NAME")] = "dqn"
    """Off-policy learner: dqn, ddpg, td3, sac or d4pg."""
    updates: Annotated[int | None, shown("N", default="no bound"), TRAINING, AT_LEAST_ONE] = None
    """Maximum number of learner updates."""
    actors: Annotated[int | Literal["auto"], shown("N|auto"), AT_LEAST_ONE] = 2
    """Number of actor processes; each runs one engine on one thread. auto uses the cores that the learner's threads
    leave free, and more actors than cores if a timed environment waits.
    """
    actor_precision: Annotated[str, shown("BITS"), QUANTISATION] = "int8"
    """Precision of the actors' inference: fp32, fp16, int8, or int7 ... int2 weights with int8 activations; intNeK has
    K bits in the first and last layers.
    """
    qat: Annotated[str | None, shown("BITS", default="off")] = None
    """Train with fake quantization for these bits, as in w8a8; they must match --actor-precision."""
    comm_bits: Annotated[int | None, shown("N", default="those of --actor-precision"), QUANTISATION] = None
    """Bits of a weight on the wire, 2..32; 16 is fp16 and 32 is fp32."""
    weight_compress: Annotated[Literal["none", "zstd"], ADVANCED] = "none"
    """Lossless compression of the packed weights."""
    engine: Annotated[Literal["litert", "torch"], QUANTISATION] = "litert"
    """Inference engine of the actors' policy; torch, the engine of users without QuaRL, is the baseline."""
    envs_per_actor: Annotated[int | Literal["auto"], shown("N|auto"), ENVIRONMENT, AT_LEAST_ONE] = 1
    """Number of environments that an actor steps in parallel, with one inference batch for all. auto times 1, 2, 4 ...
    64 for some seconds, and takes the first number beyond which steps per second grow by less than a tenth.
    """
    actor_update_interval: Annotated[int, ADVANCED, AT_LEAST_ONE] = 100
    """Environment steps of an actor between two checks for newer weights."""
    publish_interval: Annotated[int, ADVANCED, AT_LEAST_ONE] = 10
    """Learner updates between two pushes of weights."""
    max_staleness: Annotated[int, ADVANCED, AT_LEAST_ONE] = 1000
    """Maximum number of updates that an actor's weights may be behind the learner before it waits for newer ones."""
    samples_per_insert: Annotated[float | None, shown("N", default="the algorithm's own ratio"), TRAINING] = None
    """Number of replay samples per environment step; the faster side waits for the other."""
    batch_size: Annotated[int | None, shown("N", default="the algorithm's"), TRAINING, AT_LEAST_ONE] = None
    """Replay samples of one update."""
    net_arch: Annotated[str | None, shown("W,W,...", default="the algorithm's"), TRAINING] = None
    """Hidden layers of the policy, as in 2048,2048,2048; those of the critic: --params qf_arch:[512,512,256]."""
    n_steps: Annotated[int | None, shown("N", default="the algorithm's"), TRAINING, AT_LEAST_ONE] = None
    """Steps of a return before bootstrapping."""
    normalize: Annotated[Flag, TRAINING] = False
    """Normalize observations and rewards as VecNormalize does; the statistics are sent with the weights."""
    preset: Annotated[Literal["tuned", "none", "quarl-2020"], TRAINING] = "tuned"
    """Base hyper-parameters, which explicit ones override. tuned: RL Zoo's for the task, if there are any. none: the
    algorithm's defaults. quarl-2020: those of the original ActorQ's learners. There, exploration still follows
    --sigma (1 for the original's D4PG); the original's DQN also clipped rewards, and used 0.95 for one of five
    discounts.
    """
    sigma: Annotated[float, TRAINING] = 0.2
    """Largest exploration noise of ddpg, td3 and d4pg in the scaled action space; the actors form a ladder below it.
    Actors of dqn use powers of its epsilon, from 1 to 8, and those of sac sample its distribution.
    """
    error_buffer: Annotated[float | None, shown("N"), ADVANCED] = None
    """Maximum number of samples between learner and actors before the faster side waits; the default is twice the
    ratio's minimum, and at least a tenth of the warm-up's.
    """
    learner_threads: Annotated[int, ADVANCED, AT_LEAST_ONE] = 1
    """Number of the learner's threads."""
    nice: Annotated[int, ADVANCED] = 5
    """Niceness of learner and actors above that of the command, 0..19: their publisher goes first, and waits no longer
    for a core at 5 than at 10.
    """
    learner_dtype: Annotated[Literal["auto", "fp32", "bf16", "fp16"], ADVANCED] = "auto"  # type: ignore[assignment]  # one more
    """Autocast of the updates' matrix products; fp16 uses loss scaling. auto is TF32 on a GPU, bf16 for layers of at
    least 1,024 units if the processor supports it, else fp32.
    """
    device: Annotated[str, shown("NAME")] = "auto"
    """Device of the learner; auto is the GPU if there is one."""
    seed: int = 0
    """Seed of networks, environments and evaluations; actors and learner run on their own clocks, so runs of one seed
    differ.
    """
    eval_freq: int = 10_000
    """Environment steps between evaluations, which stop the training clock; 0 evaluates only at the end."""
    eval_episodes: int = 10
    """Episodes of an evaluation, for the learner's and for the quantized policy each, and at least 20 at the end; 0
    turns evaluations off.
    """
    target: Annotated[float | None, shown("N", default="train to the end"), TRAINING] = None
    """Stop when two consecutive evaluations reach this mean return."""
    save_replay_buffer: Annotated[bool, TRAINING] = True
    """Include the replay in checkpoints; without it, a resumed run first collects learning_starts steps again."""
    min_actors: Annotated[int, ADVANCED, AT_LEAST_ONE] = 1
    """Minimum number of live actors; with fewer, the run ends with exit code 4."""
    env_timeout: Annotated[float, ENVIRONMENT] = 60.0
    """Seconds without a step after which an actor counts as hung and is replaced."""
    cluster: Annotated[str | None, shown("ADDRESS|auto|local", default="this machine alone")] = None
    """Run the actors on the machines of a Ray cluster. ADDRESS: the IP:PORT printed by quarl cluster start. auto: the
    cluster that includes this machine. local: simulated machines on this one, for testing.
    """
    nodes: Annotated[int | None, shown("N", default="all"), ADVANCED, AT_LEAST_ONE] = None
    """Number of machines of --cluster; 2 for local."""
    actors_per_node: Annotated[int | None, shown("N", default="--actors"), ADVANCED, AT_LEAST_ONE] = None
    """Number of actors on each machine of --cluster."""
    distill: Annotated[Flag, QUANTISATION] = False
    """At the end, distill the policy for --actor-precision, as quarl distill does, into the folder distilled."""
    plan: Flag = False
    """Time each part for some seconds, predict throughput at fp32, fp16, int8, int4 and --actor-precision, and train
    nothing.
    """
    output: Output = Path("quarl-actorq")
    """Folder for metrics.jsonl, checkpoints, model.zip and the quantized policy."""

    def came_from(self, words: Sequence[str]) -> None:
        super().came_from(words)
        actors = QuantSpec.parse(self.actor_precision, edges=self.edge_bits)
        object.__setattr__(self, "actor_precision", actors.precision)  # explicit edge bits from here on

    def check(self) -> None:
        check_types(self)
        # Refuse invalid single values.
        if (algo := self.algo.lower()) in ON_POLICY:
            raise UnsupportedError(
                f"{algo} is on-policy, so actors cannot run ahead of it: train it with quarl train --algo {algo}"
            )
        super().check()
        self._check_precision()
        self.hidden()
        if self.samples_per_insert is not None and not self.samples_per_insert > 0:
            raise QuarlError(f"--samples-per-insert must be above 0, got {self.samples_per_insert:g}")
        if self.target is not None and not math.isfinite(self.target):
            raise QuarlError(f"--target must be a finite number, got {self.target:g}")
        if self.target is not None and not (self.eval_freq and self.eval_episodes):
            raise QuarlError("--target requires evaluations: set --eval-freq and --eval-episodes above 0")
        if not self.sigma >= 0:
            raise QuarlError(f"--sigma must not be negative, got {self.sigma:g}")
        if not 0 <= self.nice <= 19:
            raise QuarlError(f"--nice must be 0..19, got {self.nice}")
        if not self.env_timeout > 0:
            raise QuarlError(f"--env-timeout must be above 0 seconds, got {self.env_timeout:g}")
        # Refuse contradictory options.
        if self.cluster is None and (self.nodes or self.actors_per_node) and not self.resume:
            raise QuarlError("--nodes and --actors-per-node require --cluster")
        if self.cluster is not None and self.plan:
            raise QuarlError("--plan measures only this machine: drop --cluster")
        if self.cluster is None and self.actors != "auto" and self.min_actors > self.actors:
            raise QuarlError(f"--min-actors {self.min_actors} is more than --actors {self.actors}")
        check_folder(self.output)

    def _check_precision(self) -> None:
        spec = QuantSpec.parse(self.actor_precision)
        trained = self.spec()
        if trained is not None and (trained.weight_bits, trained.activation_bits) != (spec.weight_bits, 8):
            raise QuarlError(
                f"--qat {self.qat} does not match --actor-precision {self.actor_precision}; "
                f"use --qat w{spec.weight_bits}a8, or another --actor-precision"
            )
        if trained is not None and self.comm_bits is not None:
            raise QuarlError("--comm-bits and --qat are mutually exclusive, as it rounds weights further: keep one")
        self.delay(self.steps)
        known = spec.float_type in ("fp32", "fp16") or (
            spec.float_type is None and max(spec.weight_bits, spec.edge_bits or 2) <= 8 and spec.activation_bits == 8
        )
        if not known:
            raise UnsupportedError(f"actors cannot compute in {self.actor_precision}; use fp32, fp16 or int8 ... int2")
        if self.engine == "torch" and spec.float_type != "fp32":
            raise UnsupportedError("the torch engine has no integer kernels: use --actor-precision fp32 or litert")
        if self.distill and spec.float_type is not None:
            raise QuarlError("--distill requires integer actors: use --actor-precision int8 ... int2, or drop it")
        if self.comm_bits is not None and not 2 <= self.comm_bits <= 32:
            raise QuarlError(f"--comm-bits must be 2..32, got {self.comm_bits}")

    @property
    def num_actors(self) -> int:
        """Value of `actors`, once it is a number."""
        assert self.actors != "auto"
        return self.actors

    @property
    def num_envs(self) -> int:
        """Value of `envs_per_actor`, once it is a number."""
        assert self.envs_per_actor != "auto"
        return self.envs_per_actor

    @property
    def steps(self) -> int:
        """Value of `n_timesteps`, or its default."""
        return STEPS if self.n_timesteps is None else self.n_timesteps

    def hidden(self) -> list[int] | None:
        """Return `net_arch` as numbers."""
        return None if self.net_arch is None else layer_widths(self.net_arch, "--net-arch")

    def hyperparameters(self) -> dict[str, Any]:
        """Return `params` by name."""
        values = super().hyperparameters()
        if twice := [name for name in GIVEN_ONCE if name in values and getattr(self, name) is not None]:
            raise QuarlError(f"--params {twice[0]} duplicates --{twice[0].replace('_', '-')}: drop one")
        return values
