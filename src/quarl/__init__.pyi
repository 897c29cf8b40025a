import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from quarl.api import Agent as Agent
from quarl.api import distill as distill
from quarl.api import evaluate as evaluate
from quarl.api import from_module as from_module
from quarl.api import from_sb3 as from_sb3
from quarl.api import load as load
from quarl.commands.actorq_run import ActorQRun
from quarl.comparison import compare as compare
from quarl.errors import QuarlError as QuarlError
from quarl.post_training.table import ptq as ptq
from quarl.quant.schemes import scheme as scheme

__version__: str

def actorq(
    env: str = "CartPole-v1",
    *,
    progress: bool = False,
    energy: bool = False,
    energy_watts: float | None = None,
    energy_country: str | None = None,
    env_kwargs: Mapping[str, Any] | Sequence[str] = (),
    wrapper: Sequence[str] = (),
    frame_stack: int | None = None,
    max_episode_steps: int | None = None,
    algo: str = "dqn",
    n_timesteps: int | None = None,
    params: Mapping[str, Any] | Sequence[str] = (),
    qat: str | None = None,
    edge_bits: str = "8",
    qat_mid_tread: bool = False,
    quant_delay: int | None = None,
    learner_dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    eval_freq: int = 10000,
    eval_episodes: int = 10,
    save_freq: int = 50000,
    save_minutes: float = 5.0,
    resume: bool = False,
    track: Literal["none", "tensorboard", "wandb"] = "none",
    device: str = "auto",
    seed: int = 0,
    updates: int | None = None,
    actors: int | Literal["auto"] = 2,
    actor_precision: str = "int8",
    comm_bits: int | None = None,
    weight_compress: Literal["none", "zstd"] = "none",
    engine: Literal["litert", "torch"] = "litert",
    envs_per_actor: int | Literal["auto"] = 1,
    actor_update_interval: int = 100,
    publish_interval: int = 10,
    max_staleness: int = 1000,
    samples_per_insert: float | None = None,
    batch_size: int | None = None,
    net_arch: str | Sequence[int] | None = None,
    n_steps: int | None = None,
    normalize: bool = False,
    preset: Literal["tuned", "none", "quarl-2020"] = "tuned",
    sigma: float = 0.2,
    error_buffer: float | None = None,
    learner_threads: int = 1,
    target: float | None = None,
    save_replay_buffer: bool = True,
    min_actors: int = 1,
    env_timeout: float = 60.0,
    nice: int = 5,
    cluster: str | None = None,
    nodes: int | None = None,
    actors_per_node: int | None = None,
    distill: bool = False,
    output: str | os.PathLike[str] = "quarl-actorq",
) -> ActorQRun: ...
