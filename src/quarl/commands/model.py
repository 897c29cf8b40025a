"""The policy that the words of the command line name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quarl.config import ModelConfig
from quarl.envs import resolve
from quarl.policy import hub, load, zoo
from quarl.policy.graph import Policy


def locate(config: ModelConfig) -> Path:
    """The path that MODEL means: itself, or the latest run of ALGO ENV under the folder."""
    return find(config.model, config.folder)


def find(words: Sequence[str], folder: Path | None) -> Path:
    """The path that `words` mean: one path, hub:ORG/NAME as fetched, or ALGO ENV under `folder`."""
    return hub.local(Path(words[0])) if folder is None else zoo.find(folder, words[0], words[1])


def read(config: ModelConfig) -> Policy:
    """The policy (or the quantised one) at `locate(config)`; ALGO must be what the file says it is."""
    return load.read(locate(config), config.model[0] if config.folder is not None else "")


def at_home(policy: Policy, env_id: str | None) -> Policy:
    """The policy, knowing the environment that the user named where its file does not say one."""
    source = policy.provenance
    if env_id is None or source.env_id:
        return policy
    return replace(policy, provenance=replace(source, env_id=resolve(env_id, trusted=True)))


def title(policy: Policy, env_id: str | None) -> str:
    """The agent in a few words: dqn on CartPole-v1."""
    return f"{policy.provenance.algo or 'policy'} on {env_id or policy.provenance.env_id or 'no environment'}"
