"""A training in stretches from checkpoint to checkpoint, each of which goes on from what the one before has saved.

Killed or not, it so ends in the very agent of one that was not.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable

from quarl.config import TrainConfig
from quarl.envs import resolve
from quarl.errors import NothingSavedError, QuarlError
from quarl.runs import checkpoint
from quarl.runs.folder import RunFolder
from quarl.runs.outcome import Ended, TrainRow
from quarl.runs.train import Training


def train(config: TrainConfig, say: Callable[[str], None]) -> tuple[RunFolder, Ended[TrainRow]]:
    """The only run in `config.folder`, begun or gone on with: its folder, and how its last stretch ended.

    `Ended.row` is None where a signal broke it off. QuarlError where training diverges, or no checkpoint can be
    written.
    """
    before = -1
    while True:
        # Models and environments refer to each other: a replay of gigabytes would stay beside the next stretch's.
        gc.collect()
        run, ended, steps = _stretch(from_here(config, say), say)
        if ended.row is not None or ended.exit_code:
            return run, ended
        if steps <= before:
            raise QuarlError("no checkpoint can be written, so training cannot go on: free some space")
        before = steps


def _stretch(config: TrainConfig, say: Callable[[str], None]) -> tuple[RunFolder, Ended[TrainRow], int]:
    """The run, how its stretch ended, and its environment steps then; nothing here holds the learner any longer."""
    session = Training(config, say)
    ended = session.run(lambda label, done: None, one_stretch=True)
    return session.folder(), ended, session.model.num_timesteps


def from_here(config: TrainConfig, say: Callable[[str], None]) -> TrainConfig:
    """What goes on with the run from the last end of a stretch; `config` itself, its folder empty, where there is none.

    QuarlError where there may be one that cannot be read, as one of a newer QuaRL: it is left as it is. A run in the
    folder is taken for this one: whoever changes the options changes the folder too.
    """
    try:
        run = RunFolder.latest(config.folder, config.algo, resolve(config.env, trusted=True))
        saved = checkpoint.load_latest(run.path)
        if config.n_timesteps is not None and saved.timesteps >= config.n_timesteps:
            # killed in its last evaluation: the last stretch is trained again, whose end is the same
            saved.path.unlink()
            saved = checkpoint.load_latest(run.path)
        if saved.timesteps > 0:
            return TrainConfig(algo=config.algo, env=config.env, folder=config.folder, resume=True)
    except NothingSavedError as error:
        if any(config.folder.rglob("checkpoint-*")):
            say(f"trained again from the beginning: {error}")
    shutil.rmtree(config.folder, ignore_errors=True)
    return config
