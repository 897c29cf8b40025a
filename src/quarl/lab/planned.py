"""One agent of a study with one seed, on its way through the methods: the input of each method's cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quarl.errors import QuarlError
from quarl.lab.cells import TRAIN, key_of
from quarl.lab.file import PolicyEntry, Study
from quarl.lab.source import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One agent with one seed and everything that its methods need."""

    study: Study
    entry: PolicyEntry
    env_id: str
    """The current id."""
    seed: int
    agent: Agent | None
    """The agent; None if its cells are n/a."""

    @property
    def played(self) -> dict[str, Any]:
        """Everything that determines its episodes besides the seed."""
        greedy = {"deterministic": True} if self.entry.deterministic else {}
        return {"episodes": self.entry.episodes or self.study.episodes, **greedy}

    @property
    def about(self) -> dict[str, Any]:
        """The values that all its cells share."""
        source = self.agent.source if self.agent is not None else next(iter(self.entry.source), "none")
        return {
            "algo": self.entry.algo,
            "env_id": self.entry.env,
            "source": self.entry.name or source,
            "seed": self.seed,
            "episodes": self.played["episodes"],
            "agent": self.agent,
        }

    @property
    def training(self) -> str:
        """Key of the training that produces the agent; empty without one."""
        return "" if self.agent is None or self.agent.kind != TRAIN else key_of(TRAIN, self.agent.identity)

    def check(self, training: Callable[[], None]) -> None:
        """Call a check of a training; a mistake names the line of the policy."""
        try:
            training()
        except QuarlError as error:
            raise type(error)(f"{self.entry.at}: {error}") from None
        except (TypeError, AttributeError, ValueError) as error:  # a word in place of a number
            raise self.entry.at.wrong(f"an option of a training is malformed: {error}") from None
