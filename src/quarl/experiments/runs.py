"""The trainings of a study as the verbs know them: `quarl train` and `quarl actorq`, from what a cell's work says."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quarl.config import ActorQConfig, TrainConfig
from quarl.errors import QuarlError

UNCHECKED = Path(tempfile.gettempdir()) / "runs"
"""Stands for the folder of a training whose options are only checked."""


def training_config(
    work: Mapping[str, Any], folder: Path, trained_agent: Path | None = None, normalize: str | None = None
) -> TrainConfig:
    """The `quarl train` of a training or of a quantisation-aware cell."""
    return TrainConfig(
        algo=work["algo"],
        env=work["env_id"],
        n_timesteps=work["n_timesteps"],
        params=_words(work["params"]),
        qat=work.get("qat"),
        quant_delay=work.get("quant_delay"),
        trained_agent=trained_agent,
        normalize=normalize,
        folder=folder,
        seed=work["seed"],
        **{"save_freq": work["save_freq"], "eval_freq": work["eval_freq"], **work.get("train", {})},
        **work.get("environment", {}),
    )


def check_training(work: Mapping[str, Any]) -> None:
    """QuarlError where `quarl train` would not begin for its options or hyper-parameters."""
    config = training_config(work, UNCHECKED)
    config.check()
    if not config.eval_episodes:
        raise QuarlError("eval_episodes: 0 leaves no best agent, which is the one that is measured")
    if not config.params:
        return
    from quarl.algorithms.learners import constructor  # here: loading learners takes a second
    from quarl.runs.hyperparameters import interpret

    recipe = interpret({"n_timesteps": config.n_timesteps or 1, **config.hyperparameters()}, Path("params"))
    constructor(config.algo, recipe.arguments)


def check_actorq(work: Mapping[str, Any]) -> None:
    """QuarlError where `quarl actorq` would not begin for its options or hyper-parameters."""
    from quarl.actorq.build import hyperparameters

    config = actorq_config(work, UNCHECKED)
    config.check()
    hyperparameters(config)


def actorq_config(work: Mapping[str, Any], folder: Path) -> ActorQConfig:
    """The `quarl actorq` of a cell."""
    return ActorQConfig(
        algo=work["algo"],
        env=work["env_id"],
        actor_precision=work["precision"],
        seed=work["seed"],
        params=_words(work["options"]["params"]),
        output=folder,
        **work.get("environment", {}),
        **{"preset": "none"} | {name: value for name, value in work["options"].items() if name != "params"},
    )


def _words(params: Mapping[str, Any]) -> tuple[str, ...]:
    """NAME:VALUE, as on the command line."""
    return tuple(f"{name}:{value}" for name, value in params.items())
