"""The policy that the words of the command line name."""

from __future__ import annotations

from pathlib import Path

from quarl.config import ModelConfig
from quarl.policy import load, zoo
from quarl.policy.graph import Policy


def locate(config: ModelConfig) -> Path:
    """The path that MODEL means: itself, or the latest run of ALGO ENV under the folder."""
    if config.folder is None:
        return Path(config.model[0])
    return zoo.find(config.folder, *config.model)


def read(config: ModelConfig) -> Policy:
    """The policy (or the quantised one) at `locate(config)`; ALGO must be what the file says it is."""
    return load.read(locate(config), config.model[0] if config.folder is not None else "")


def title(policy: Policy, env_id: str | None) -> str:
    """The agent in a few words: dqn on CartPole-v1."""
    return f"{policy.provenance.algo or 'policy'} on {env_id or policy.provenance.env_id or 'no environment'}"
