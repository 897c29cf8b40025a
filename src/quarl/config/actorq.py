"""What `quarl actorq` can be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from quarl.config.base import Flag, Output, at_least_one, check_folder, check_types, layer_widths
from quarl.config.groups import ADVANCED, ENVIRONMENT, QUANTISATION, TRAINING, shown
from quarl.config.learner_options import LearnerOptions
from quarl.errors import QuarlError, UnsupportedError
from quarl.quant.spec import QuantSpec

ALGORITHMS = ("dqn", "ddpg", "td3", "sac", "d4pg")
STEPS = 100_000
"""Environment steps of a run that says nothing."""
GIVEN_ONCE = ("n_steps", "batch_size")
"""Hyper-parameters that are options too."""
COUNTS = (
    *("actors", "envs_per_actor", "actor_update_interval", "publish_interval", "max_staleness"),
    *("min_actors", "learner_threads", "updates", "batch_size", "n_steps"),
    *("nodes", "actors_per_node"),
)
"""Options from 1 on."""
ON_POLICY = ("ppo", "a2c", "trpo", "recurrentppo", "ars", "maskableppo")


@dataclass(frozen=True, kw_only=True)
class ActorQConfig(LearnerOptions):
    """Train with a full-precision learner and quantised actor processes."""

    verb: ClassVar[str] = "actorq"
    examples = (
        "quarl actorq --algo dqn -n 50000 --actors 2 --actor-precision int8 -o runs/cartpole",
        "quarl actorq --plan",
    )
    learners: ClassVar[tuple[str, ...]] = ALGORITHMS
    new: ClassVar[tuple[str, ...]] = (*LearnerOptions.new, "output", "plan")
    free: ClassVar[tuple[str, ...]] = (
        *(*LearnerOptions.free, "updates", "target", "save_replay_buffer", "actors", "min_actors", "max_staleness"),
        *("env_timeout", "learner_threads", "distill", "cluster", "nodes", "actors_per_node"),
    )

    algo: Annotated[str, shown("NAME")] = "dqn"
    """Off-policy learner: dqn, ddpg, td3, sac or d4pg."""
    updates: Annotated[int | None, shown("N", default="no bound"), TRAINING] = None
    """Learner updates after which training ends, if that comes first."""
    actors: Annotated[int | Literal["auto"], shown("N|auto")] = 2
    """Actor processes; each runs one engine on one thread. auto: the cores that the learner's threads leave."""
    actor_precision: Annotated[str, shown("BITS"), QUANTISATION] = "int8"
    """What actors compute in: fp32, fp16, int8, or int7 ... int2 weights with int8 activations; intNeK has K bits in
    the first and last layers."""
    qat: Annotated[str | None, shown("BITS", default="off")] = None
    """Train with fake quantisation for these bits, as in w8a8: those of --actor-precision, which actors run."""
    comm_bits: Annotated[int | None, shown("N", default="those of --actor-precision"), QUANTISATION] = None
    """Bits of a weight on the wire, 2..32; 16 is fp16 and 32 is fp32."""
    weight_compress: Annotated[Literal["none", "zstd"], ADVANCED] = "none"
    """Lossless compression of the packed weights."""
    engine: Annotated[Literal["litert", "torch"], QUANTISATION] = "litert"
    """What runs the actors' policy; torch is what users have without QuaRL: the baseline."""
    envs_per_actor: Annotated[int | Literal["auto"], shown("N|auto"), ENVIRONMENT] = 1
    """Environments that an actor steps side by side, one batch of inference for all. auto: from 1, 2, 4 ... 64 those
    from which an actor, timed for some seconds, makes no tenth more steps."""
    actor_update_interval: Annotated[int, ADVANCED] = 100
    """Environment steps of an actor between two looks for newer weights."""
    publish_interval: Annotated[int, ADVANCED] = 10
    """Learner updates between two pushes of weights."""
    max_staleness: Annotated[int, ADVANCED] = 1000
    """Updates that an actor's weights may be behind the learner; then it waits for newer ones."""
    samples_per_insert: Annotated[float | None, shown("N", default="the algorithm's own ratio"), TRAINING] = None
    """Samples of replay for every environment step; the faster side waits for the other."""
    batch_size: Annotated[int | None, shown("N", default="the algorithm's"), TRAINING] = None
    """Replay samples of one update."""
    net_arch: Annotated[str | None, shown("W,W,...", default="the algorithm's"), TRAINING] = None
    """Hidden layers of the policy, as in 2048,2048,2048; the critic's: --params qf_arch:[512,512,256]."""
    n_steps: Annotated[int | None, shown("N", default="the algorithm's"), TRAINING] = None
    """Steps of a return before bootstrapping."""
    normalize: Annotated[Flag, TRAINING] = False
    """Normalise observations and rewards as VecNormalize does; the statistics travel with the weights."""
    preset: Annotated[Literal["tuned", "none", "quarl-2020"], TRAINING] = "tuned"
    """Hyper-parameters below those that are given: RL Zoo's tuned ones for the task, where there are any; the
    algorithm's own defaults; or those of the original ActorQ's learners, whose exploration stays that of --sigma, which
    was 1 for the original's D4PG; its DQN clipped rewards, which this does not, and had 0.95 for one of five
    discounts."""
    sigma: Annotated[float, TRAINING] = 0.2
    """Largest exploration noise of ddpg, td3 and d4pg in the scaled action space; actors stand on a ladder below it.
    Those of dqn stand on powers of its epsilon, from 1 to 8, and those of sac sample its distribution."""
    error_buffer: Annotated[float | None, shown("N"), ADVANCED] = None
    """Samples by which learner and actors may be apart before the faster one waits; without it twice what the ratio
    needs, and a tenth of the warm-up's at least."""
    learner_threads: Annotated[int, ADVANCED] = 1
    """Threads of the learner."""
    learner_dtype: Annotated[Literal["auto", "fp32", "bf16", "fp16"], ADVANCED] = "auto"  # type: ignore[assignment]  # one more
    """Autocast of the updates' matrix products, fp16 with loss scaling; auto is TF32 on a GPU, bf16 for layers of 1,024
    units and more where the processor multiplies it, else fp32."""
    device: Annotated[str, shown("NAME")] = "auto"
    """The learner's device; auto is the GPU where there is one."""
    eval_freq: int = 10_000
    """Environment steps between evaluations, which stop the training clock; 0: only at the end."""
    eval_episodes: int = 10
    """Episodes of an evaluation, for the learner's and for the quantised policy each; of the last one 20 at least. 0:
    nothing is evaluated."""
    target: Annotated[float | None, shown("N", default="train to the end"), TRAINING] = None
    """Stop when two evaluations running reach this mean return."""
    save_replay_buffer: Annotated[bool, TRAINING] = True
    """Keep replay in the checkpoints too; without it a resumed run gathers learning_starts steps anew."""
    min_actors: Annotated[int, ADVANCED] = 1
    """With fewer actors alive the run ends with exit code 4."""
    env_timeout: Annotated[float, ENVIRONMENT] = 60.0
    """Seconds without a step after which an actor counts as hung and is replaced."""
    cluster: Annotated[str | None, shown("ADDRESS|auto|local", default="this machine alone")] = None
    """Act on the machines of a Ray cluster, at IP:PORT as quarl cluster start says it; auto: the one that this machine
    is of; local: machines that are processes of this one, for trying."""
    nodes: Annotated[int | None, shown("N", default="all that are there"), ADVANCED] = None
    """Machines of --cluster to act on; of local 2."""
    actors_per_node: Annotated[int | None, shown("N", default="--actors"), ADVANCED] = None
    """Actors on each machine of --cluster."""
    distill: Annotated[Flag, QUANTISATION] = False
    """In the end distil the policy for --actor-precision, as quarl distill does, into the folder distilled."""
    plan: Flag = False
    """Measure the parts for some seconds, predict throughput at fp32, fp16, int8, int4 and --actor-precision, and train
    nothing."""
    output: Output = Path("quarl-actorq")
    """Folder for metrics.jsonl, checkpoints, model.zip and the quantised policy."""

    def came_from(self, words: Sequence[str]) -> None:
        super().came_from(words)
        actors = QuantSpec.parse(self.actor_precision, edges=self.edge_bits)
        object.__setattr__(self, "actor_precision", actors.precision)  # which names its edges from here on

    def check(self) -> None:
        check_types(self)
        if self.algo in ON_POLICY:
            raise UnsupportedError(
                f"{self.algo} learns on-policy: actors cannot run ahead of it; use one of {', '.join(ALGORITHMS)}"
            )
        super().check()
        at_least_one(**{name: getattr(self, name) for name in COUNTS})
        self._check_precision()
        self.hidden()
        if self.samples_per_insert is not None and not self.samples_per_insert > 0:
            raise QuarlError(f"--samples-per-insert must be above 0, got {self.samples_per_insert:g}")
        if self.target is not None and not math.isfinite(self.target):
            raise QuarlError(f"--target must be a finite number, got {self.target:g}")
        if self.target is not None and not (self.eval_freq and self.eval_episodes):
            raise QuarlError("--target is met in evaluations: give an --eval-freq and --eval-episodes")
        if not self.sigma >= 0:
            raise QuarlError(f"--sigma must not be negative, got {self.sigma:g}")
        if not self.env_timeout > 0:
            raise QuarlError(f"--env-timeout must be above 0 seconds, got {self.env_timeout:g}")
        if self.cluster is None and (self.nodes or self.actors_per_node) and not self.resume:
            raise QuarlError("--nodes and --actors-per-node are of a cluster: give --cluster, or drop them")
        if self.cluster is not None and self.plan:
            raise QuarlError("--plan measures this machine alone: drop --cluster")
        if self.cluster is None and self.actors != "auto" and self.min_actors > self.actors:
            raise QuarlError(f"--min-actors {self.min_actors} is more than --actors {self.actors}")
        check_folder(self.output)

    def _check_precision(self) -> None:
        spec = QuantSpec.parse(self.actor_precision)
        trained = self.spec()
        if trained is not None and (trained.weight_bits, trained.activation_bits) != (spec.weight_bits, 8):
            raise QuarlError(
                f"--qat {self.qat} trains for other kernels than --actor-precision {self.actor_precision}; "
                f"use --qat w{spec.weight_bits}a8, or another --actor-precision"
            )
        if trained is not None and self.comm_bits is not None:
            raise QuarlError("--comm-bits would round weights further than --qat trains for: keep one")
        self.delay(self.steps)
        known = spec.float_type in ("fp32", "fp16") or (
            spec.float_type is None and max(spec.weight_bits, spec.edge_bits or 2) <= 8 and spec.activation_bits == 8
        )
        if not known:
            raise UnsupportedError(f"actors cannot compute in {self.actor_precision}; use fp32, fp16 or int8 ... int2")
        if self.engine == "torch" and spec.float_type != "fp32":
            raise UnsupportedError("the torch engine has no integer kernels: use --actor-precision fp32 or litert")
        if self.distill and spec.float_type is not None:
            raise QuarlError("--distill is for integer actors: use --actor-precision int8 ... int2, or drop it")
        if self.comm_bits is not None and not 2 <= self.comm_bits <= 32:
            raise QuarlError(f"--comm-bits must be 2..32, got {self.comm_bits}")

    @property
    def num_actors(self) -> int:
        """`actors`, once it is a number."""
        assert self.actors != "auto"
        return self.actors

    @property
    def num_envs(self) -> int:
        """`envs_per_actor`, once it is a number."""
        assert self.envs_per_actor != "auto"
        return self.envs_per_actor

    @property
    def steps(self) -> int:
        """`n_timesteps`, or what stands for it."""
        return STEPS if self.n_timesteps is None else self.n_timesteps

    def hidden(self) -> list[int] | None:
        """`net_arch` as numbers."""
        return None if self.net_arch is None else layer_widths(self.net_arch, "--net-arch")

    def hyperparameters(self) -> dict[str, Any]:
        """`params` by name."""
        values = super().hyperparameters()
        if twice := [name for name in GIVEN_ONCE if name in values and getattr(self, name) is not None]:
            raise QuarlError(f"--params {twice[0]} is given by --{twice[0].replace('_', '-')} too: drop one")
        return values
