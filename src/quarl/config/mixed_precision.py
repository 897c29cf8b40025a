"""Options of `quarl bench mixed-precision`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from quarl.config.base import MeteredConfig, Output, at_least_one, check_folder, hyperparameters
from quarl.config.environment import EnvironmentConfig
from quarl.config.groups import ADVANCED, ENVIRONMENT, QUANTISATION, TRAINING, shown
from quarl.config.train import TrainConfig
from quarl.errors import QuarlError
from quarl.literals import Name, mapping, spell

Dtype = Literal["fp32", "bf16", "fp16"]
POLICIES = {"A": (128, 128), "B": (512, 512), "C": (1024, 2048)}
"""Filters of each of three convolutions and width of the dense layer, as in the original's experiment."""
MAX_WIDTH = 16_384
NUM_FRAMES = 1_000
"""Number of random transitions in the replay of a learner whose updates are timed."""
FIXED = {"buffer_size": NUM_FRAMES, "learning_starts": 0, "optimize_memory_usage": False}
"""Fixed hyper-parameters of that learner."""


@dataclass(frozen=True, kw_only=True)
class MixedPrecisionConfig(EnvironmentConfig, MeteredConfig):
    """Measure the update time of DQN on images in mixed precision.

    Matrix products are autocast, weights and optimizer stay in float32, and fp16 uses loss scaling. The output folder
    keeps finished cells: repeat the command to resume.
    """

    verb: ClassVar[str] = "bench mixed-precision"
    examples = ("quarl bench mixed-precision --policies A --dtypes fp32 bf16 -o mixed",)

    policies: Annotated[tuple[str, ...], shown("NAME ...", default="A B C"), TRAINING] = ()
    """Policies A (128,128), B (512,512), C (1024,2048) or other FILTERS,WIDTH: three convolutions with the Nature CNN's
    kernels and strides and FILTERS filters each, and a dense layer of WIDTH units.
    """
    dtypes: Annotated[tuple[Dtype, ...], shown("NAME ..."), QUANTISATION] = ("fp32", "bf16", "fp16")
    """Types of the updates; the others are compared with fp32."""
    env: Annotated[str, shown("ID"), ENVIRONMENT] = "PongNoFrameskip-v4"
    """Gymnasium id of an environment with images; replay holds its frames."""
    batch_size: Annotated[int, TRAINING] = 32
    """Replay samples of one update."""
    seconds: float = 60.0
    """Seconds of updates for each precision of a policy. If fewer than three updates fit, the time is extrapolated from
    small batches.
    """
    params: Annotated[tuple[str, ...], shown("NAME:VALUE ..."), TRAINING] = ()
    """Hyper-parameters that override the tuned ones, as for quarl train; policy_kwargs must exclude the architecture,
    as in policy_kwargs:"dict(optimizer_kwargs=dict(eps=1.5e-4))".
    """
    threads: Annotated[int | None, shown("N", default="all cores"), ADVANCED] = None
    """Number of the learner's threads."""
    device: Annotated[str, shown("NAME"), ADVANCED] = "auto"
    """Device of the learner; auto is the GPU if there is one."""
    minutes: float = 90.0
    """Minutes after which no new cell starts; repeat the command to continue."""
    seed: int = 0
    """First seed."""
    output: Output = Path("quarl-bench-mixed-precision")
    """Folder of the cells and tables."""

    def check(self) -> None:
        super().check()
        at_least_one(batch_size=self.batch_size)
        if not self.seconds > 0 or not self.minutes > 0:
            raise QuarlError("--seconds and --minutes must be above 0")
        said = {"batch_size": "duplicates --batch-size", **dict.fromkeys(FIXED, "is fixed in this benchmark")}
        if known := said.keys() & hyperparameters(self.params, str):
            name = min(known)
            raise QuarlError(f"--params {name} {said[name]}: drop it")
        if not self.dtypes:
            raise QuarlError("--dtypes requires at least one value, as in --dtypes fp32 bf16")
        for policy in self.chosen():
            self.training(policy, self.dtypes[0], self.seed, self.output).check()
        check_folder(self.output)

    def chosen(self) -> tuple[str, ...]:
        """Return the names of the policies."""
        return self.policies or tuple(POLICIES)

    def policy_kwargs(self, policy: str) -> str:
        """Return --params' policy_kwargs with the policy's architecture; raise QuarlError if both define the same."""
        filters, width = sizes(policy)
        shape = {
            "features_extractor_class": Name("WideCNN"),
            "features_extractor_kwargs": {"filters": filters, "features_dim": width},
            "net_arch": [],
        }
        text = hyperparameters(self.params, str).get("policy_kwargs", "dict()")
        try:
            given = mapping(text, names=True)
        except ValueError:
            raise QuarlError(f"--params policy_kwargs:{text[:60]} is not a dict(...) of literals") from None
        if shaping := [name for name in shape if name in given]:
            raise QuarlError(f"--params policy_kwargs: {shaping[0]} is set by --policies: drop it")
        return spell(given | shape)

    def training(self, policy: str, dtype: Dtype, seed: int, folder: Path) -> TrainConfig:
        """Return the training whose updates are timed.

        Args:
            policy: Name of the policy.
            dtype: Type of the matrix products.
            seed: Seed of the learner.
            folder: Folder of the run.
        """
        words = (f"batch_size:{self.batch_size}", f"policy_kwargs:{self.policy_kwargs(policy)}")
        return TrainConfig(
            algo="dqn",
            env=self.env,
            params=(*self.params, *words),
            learner_dtype=dtype,
            folder=folder,
            threads=self.threads,
            device=self.device,
            seed=seed,
            **self.environment_options(),
        )


def sizes(policy: str) -> tuple[int, int]:
    """Return (filters, width of the dense layer) of a policy by its name."""
    if policy in POLICIES:
        return POLICIES[policy]
    words = policy.split(",")
    if len(words) != 2 or not all(
        word.isascii() and word.isdecimal() and 1 <= int(word) <= MAX_WIDTH for word in words
    ):
        known = ", ".join(f"{name} ({filters},{width})" for name, (filters, width) in POLICIES.items())
        raise QuarlError(f"unknown --policies {policy!r}; use {known} or FILTERS,WIDTH, as in 64,256")
    return int(words[0]), int(words[1])
