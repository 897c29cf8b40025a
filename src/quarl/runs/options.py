"""What a run of `quarl train` is made of: its options, those of the run that it goes on with, and what is tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from quarl.algorithms import tuned
from quarl.config import TrainConfig
from quarl.config.environment import spelled
from quarl.config.options import completed
from quarl.envs import resolve
from quarl.envs.bound import LIMIT, longest
from quarl.envs.names import is_atari
from quarl.envs.options import EnvironmentOptions, described
from quarl.policy.graph import Provenance
from quarl.runs.folder import RunFolder
from quarl.runs.hyperparameters import interpret
from quarl.runs.trained_agent import TrainedAgent


class RunOptions:
    """Everything that a run is told, each thing once. Files have been read, and none written."""

    def __init__(self, config: TrainConfig, say: Callable[[str], None]) -> None:
        """say: hears what was chosen for the user."""
        self.env_id, given = resolve(config.env, trusted=True), config.hyperparameters()
        path, atari = config.trained_agent, is_atari(self.env_id)
        self.agent = None if path is None else TrainedAgent(path, config.algo, config.normalize)
        self.folder = RunFolder.latest(config.folder, config.algo, self.env_id) if config.resume else None
        """That of a run which goes on."""
        self.asked = config.spec()
        """The precision that the user names, where the run goes on."""
        # hyper-parameters: the run's, or tuned ones with the trained agent's architecture; over them those given
        before: dict[str, Any] = {}
        if self.folder is not None:
            config = completed(config, _saved(self.folder), self.folder.options)
            before = self.folder.read_config()
            written = before | given
        else:
            defaults = tuned.read(config.algo, self.env_id, atari=atari)
            say(f"hyper-parameters: {defaults.origin}")
            adapted = self.agent and self.agent.adapt(defaults.written, given, say)
            written = adapted or defaults.written | given
        # over both the verb's own options; the zoo's scripts take what is there for set
        written |= {name: getattr(config, name) or written.get(name) for name in ("n_timesteps", "n_envs")}
        written = EnvironmentOptions.said(config).over(written)
        self.has_changed = config.resume and any(written.get(name) != before.get(name) for name in written)
        """Whether it goes on with other options than it began with, which no single command repeats."""
        self.written = {name: value for name, value in written.items() if value is not None}
        where = Path("hyper-parameters") if self.folder is None else self.folder.settings / "config.yml"
        self.recipe = recipe = interpret(self.written, where)
        longest(recipe.env_kwargs.get(LIMIT), config.max_episode_steps)
        if self.folder is None and atari:
            game = Provenance(env_id=self.env_id, env_kwargs=recipe.env_kwargs, wrappers=recipe.wrappers)
            say(f"a game of Atari: {described(game)}")
        delay = config.delay(recipe.n_timesteps)
        self.config = replace(config, n_timesteps=recipe.n_timesteps, quant_delay=delay)


def _saved(folder: RunFolder) -> dict[str, Any]:
    """The options that the run in the folder began with."""
    options = folder.read_args()
    if isinstance(agent := options.get("trained_agent"), str):
        options["trained_agent"] = Path(agent)
    kwargs = options.get("env_kwargs")
    return {**options, "env_kwargs": spelled(kwargs) if isinstance(kwargs, dict) else ()}
