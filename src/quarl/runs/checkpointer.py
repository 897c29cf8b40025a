"""The checkpointer of a run, which saves its learner and restores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer

from quarl import qat
from quarl.arrays import Array
from quarl.envs.seeds import EPISODE_BITS, episode_seed
from quarl.errors import QuarlError
from quarl.files import Dispensable
from quarl.quant.spec import QatSpec
from quarl.runs import checkpoint, checkpoint_model
from quarl.runs.checkpoint_model import difference
from quarl.runs.folder import RunFolder


class Diverged(QuarlError):
    """A loss or a weight is NaN or infinite."""


class Checkpointer:
    """Checkpoints of one run: networks, optimizers, clocks, generators, statistics and, off-policy, replay."""

    def __init__(
        self,
        model: BaseAlgorithm,
        folder: Callable[[], RunFolder],
        say: Callable[[str], None],
        replay: checkpoint.Replay | None,
        *,
        saves_replay: bool = True,
    ) -> None:
        """Prepare the checkpoints.

        Args:
            model: Learner to save.
            folder: Returns the run's folder; called when there is something to write.
            say: Receives warnings, one line each.
            replay: The model's replay; None for an on-policy learner.
            saves_replay: Save the replay's contents too.
        """
        self.model, self._folder, self._say, self._replay = model, folder, say, replay
        self._saves_replay = saves_replay
        self.newest: Path | None = None
        """The last checkpoint that was written or restored."""
        self._files = Dispensable(say, checkpoint.CheckpointError)

    def save(self, clock_s: float, *, last: bool = False, **state: Any) -> bool:
        """Write a checkpoint; a full disk costs the checkpoint and not the run.

        Args:
            clock_s: Seconds of training so far.
            last: Nothing is saved after this: raise CheckpointError when it cannot be written.
            **state: JSON values that are saved too.

        Returns:
            Whether the checkpoint was written.

        Raises:
            QuarlError: A weight is NaN or infinite.
        """
        spec = qat.spec_of(self.model)
        state |= {"clock_s": clock_s, "qat": None if spec is None else spec.to_json()}
        return self._files.write(partial(self._write, state), last=last)

    def _write(self, state: Mapping[str, Any]) -> None:
        replay = self._replay if self._saves_replay else None
        self.newest = checkpoint.save(self._folder().path, self.model, state, replay=replay)

    def load(self) -> checkpoint.Checkpoint:
        """Return the newest intact checkpoint and print a warning for each damaged one.

        Raises:
            QuarlError: The learner trains for other precisions than the checkpoint's.
        """
        newest = checkpoint.load_latest(self._folder().path)
        for warning in newest.warnings:
            self._say(warning)
        trained_for = None if (saved := newest.state.get("qat")) is None else QatSpec.from_json(saved)
        if trained_for != qat.spec_of(self.model) and "qat" in newest.state:
            raise QuarlError(f"{newest.path} was trained with other --qat options; resume with those of the first run")
        self.newest = newest.path
        return newest

    @checkpoint.sound()
    def resume(self) -> float:
        """Restore the newest intact checkpoint and return its training clock in seconds."""
        newest = self.load()
        checkpoint.restore(newest, self.model, self._replay)
        self._go_on(newest)
        return float(newest.state["clock_s"])

    def _go_on(self, newest: checkpoint.Checkpoint) -> None:
        """Restore the rest of the run after the model; subclasses override this."""

    def check_finite(self) -> None:
        """Raise `Diverged` if a weight is NaN or infinite."""
        if checkpoint_model.not_finite(self.model) is not None:
            raise self.diverged()

    def diverged(self) -> Diverged:
        """Return the exception to raise, which names the layer and the last checkpoint."""
        layer = checkpoint_model.suspect(self.model)
        what = f"training diverged: {layer} was not finite after update {self.model._n_updates:,}"
        if self.newest is None:
            return Diverged(f"{what}; use a smaller --params learning_rate")
        return Diverged(
            f"{what}; the last good checkpoint is {self.newest}: continue from it with --resume and a smaller "
            "--params learning_rate"
        )


class AgentCheckpointer(Checkpointer):
    """Checkpoints of `quarl train`, each with the agent of that time."""

    def __init__(
        self, model: BaseAlgorithm, folder: Callable[[], RunFolder], say: Callable[[str], None], seed: int
    ) -> None:
        """Prepare the checkpoints of `quarl train`.

        Args:
            model: Learner to save.
            folder: Returns the run's folder; called when there is something to write.
            say: Receives warnings, one line each.
            seed: Seed of the run.
        """
        buffer = getattr(model, "replay_buffer", None)
        super().__init__(model, folder, say, None if buffer is None else StoredReplay(buffer))
        self._seed = seed

    def _write(self, state: Mapping[str, Any]) -> None:
        self._folder().write_agent(self.model)  # before the checkpoint: without an agent, a run is not complete
        super()._write(state)

    def _go_on(self, newest: checkpoint.Checkpoint) -> None:
        self._begin_episodes()

    def begin_anew(self) -> None:
        """Begin new episodes in the middle of training, as Stable-Baselines3 begins the first ones."""
        model = self.model
        self._begin_episodes()
        assert model.env is not None
        model._last_obs = model.env.reset()  # type: ignore[assignment]  # as in its _setup_learn
        model._last_episode_starts = np.ones((model.env.num_envs,), dtype=bool)
        if model._vec_normalize_env is not None:
            model._last_original_obs = model._vec_normalize_env.get_original_obs()

    def _begin_episodes(self) -> None:
        """End the current episodes and give the environments new seeds, because their state is not saved."""
        if isinstance(self._replay, StoredReplay):
            self._replay.end_episodes()
        assert self.model.env is not None
        self.model.env.seed(episode_seed("training", self._seed, self.model.num_timesteps % 2**EPISODE_BITS))


IMAGES = ("observations", "next_observations")
FIELDS = (*IMAGES, "actions", "rewards", "dones", "timeouts")
CURSOR = "cursor"
NAMES = ("frames", "begins", "stacks")
NEXT_NAMES = ("jumps", "next_stacks")
CHUNK = 256
"""Rows compared at a time, so that the boolean results stay small."""


class StoredReplay:
    """A buffer that can be saved: its filled rows [T, N, ...] and its write position.

    Each stacked frame is saved once: 100,000 steps of an Atari game take 0.7 GB instead of 5.6 GB, and the same images
    are restored exactly. A stack of four frames shares three of them with the stack before it, and the next observation
    is usually the following step's. The arrays are compared to find both, and stacks that do not overlap are kept
    complete.

    Samples are drawn with numpy's global generator, which is in every checkpoint.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def state(self) -> dict[str, Array]:
        """Return the filled rows by field, and the cursor; all but stacked frames are views."""
        buffer = self.buffer
        rows = self._fields(self._rows(buffer.pos, buffer.full))
        packed = pack(rows["observations"], rows.get("next_observations"))
        if packed is not None:
            rows = {name: array for name, array in rows.items() if name not in IMAGES} | packed
        return {**rows, CURSOR: np.array([buffer.pos, buffer.full], np.int64)}

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore contents returned by `state`, as copies; raise QuarlError if the rows do not fit this buffer."""
        buffer = self.buffer
        pos, full = (int(number) for number in state[CURSOR])
        num_rows, room = len(state["actions"]), buffer.buffer_size
        if not 0 <= pos < room or num_rows != self._rows(pos, bool(full)):
            raise QuarlError(f"its replay holds {num_rows} rows and this run's has room for {room}")
        rows = self._fields(num_rows)
        images = {name: rows.pop(name) for name in IMAGES if name in rows} if "frames" in state else {}
        saved = {name: state[name] for name in FIELDS if name in state}
        if differs := difference(saved, rows):
            name, there, here = differs
            raise QuarlError(
                f"the {name} of its replay are {there} and this run's {here}; resume with the options of the first "
                "run, such as --n-envs"
            )
        if images:
            unpack(state, images["observations"], images.get("next_observations"))
        for name, array in saved.items():
            rows[name][:] = array
        buffer.pos, buffer.full = pos, bool(full)

    def end_episodes(self) -> None:
        """Mark the newest row as the last of its episodes, because the next row does not follow from it."""
        buffer = self.buffer
        if not (buffer.pos or buffer.full):
            return
        newest = (buffer.pos - 1) % buffer.buffer_size
        # the next row overwrites the observation that followed, so nothing is left to bootstrap on
        if buffer.optimize_memory_usage:
            buffer.dones[newest] = 1.0
        else:
            buffer.timeouts[newest] = np.maximum(buffer.timeouts[newest], 1.0 - buffer.dones[newest])

    def _fields(self, rows: int) -> dict[str, Array]:
        """Return views of the first rows."""
        return {name: getattr(self.buffer, name)[:rows] for name in FIELDS if hasattr(self.buffer, name)}

    def _rows(self, pos: int, full: bool) -> int:
        """Return the number of filled rows; with memory-optimized storage, the next observation is one of them."""
        if full:
            return self.buffer.buffer_size
        return min(pos + int(self.buffer.optimize_memory_usage), self.buffer.buffer_size)


def pack(observations: Array, following: Array | None) -> dict[str, Array] | None:
    """Return stacks of frames in fewer bytes; None if little can be saved.

    frames [T, N, H, W] holds the newest frame of each stack. begins [T, N] marks stacks that do not continue the one
    before; those are in stacks [K, S, H, W]. jumps and next_stacks are the same for the following stacks, if there are
    any.

    Args:
        observations: Stacks [T, N, S, H, W] in uint8.
        following: Stacks that followed them, of the same shape; None if the buffer does not store them.

    Returns:
        The packed arrays by name, or None.
    """
    if observations.ndim != 5 or observations.dtype != np.uint8 or observations.shape[2] < 2 or not len(observations):
        return None
    begins, jumps = np.ones((2, *observations.shape[:2]), bool)
    # stacks that differ from the one before, shifted by one frame
    begins[1:] = _differ(observations[1:, :, :-1], observations[:-1, :, 1:])
    # following stacks that differ from the observation, shifted by the newest frame of the next one
    if following is not None:
        jumps[:-1] = _differ(following[:-1, :, :-1], observations[:-1, :, 1:])
        jumps[:-1] |= _differ(following[:-1, :, -1], observations[1:, :, -1])
    if begins.mean() > 0.5 or (following is not None and jumps.mean() > 0.5):
        return None
    packed = {
        "frames": np.ascontiguousarray(observations[:, :, -1]),
        "begins": begins,
        "stacks": observations[begins],
    }
    if following is not None:
        packed |= {"jumps": jumps, "next_stacks": following[jumps]}
    return packed


def unpack(packed: Mapping[str, Array], observations: Array, following: Array | None) -> None:
    """Restore the arrays that `pack` packed.

    Args:
        packed: Arrays returned by `pack`.
        observations: Array [T, N, S, H, W] that receives the stacks.
        following: Array of the same shape that receives the following stacks; None if there are none.

    Raises:
        QuarlError: The packed arrays do not fit these shapes.
    """
    _check(packed, observations.shape, has_following=following is not None)
    frames, begins, stacks = (packed[name] for name in NAMES)
    ends = begins.sum(axis=1).cumsum()
    for t, begin in enumerate(begins):
        if t:
            observations[t, :, :-1] = observations[t - 1, :, 1:]
        observations[t, :, -1] = frames[t]
        observations[t, begin] = stacks[ends[t] - begin.sum() : ends[t]]
    if following is not None:
        following[:, :, :-1] = observations[:, :, 1:]
        following[:-1, :, -1] = observations[1:, :, -1]
        following[packed["jumps"]] = packed["next_stacks"]


def _differ(stacks: Array, others: Array) -> Array:
    """Return bool [T, N]: True for the entries of the two [T, N, ...] that differ."""
    chunks = (slice(start, start + CHUNK) for start in range(0, len(stacks), CHUNK))
    axes = tuple(range(2, stacks.ndim))
    return np.concatenate([np.zeros((0, stacks.shape[1]), bool), *((stacks[c] != others[c]).any(axes) for c in chunks)])


def _check(packed: Mapping[str, Array], shape: tuple[int, ...], *, has_following: bool) -> None:
    wanted: dict[str, tuple[int, ...]] = {}
    for mask, kept in (("begins", "stacks"), *((NEXT_NAMES,) if has_following else ())):
        array = packed.get(mask)
        if array is None or array.dtype != np.bool_ or array.shape != shape[:2]:
            raise QuarlError(f"its replay has no {mask} that fit this run's, {shape[:2]}")
        wanted[kept] = (int(array.sum()), *shape[2:])
    wanted["frames"] = (*shape[:2], *shape[3:])
    for name, expected in wanted.items():
        array = packed.get(name)
        if array is None or array.dtype != np.uint8 or array.shape != expected:
            saved = None if array is None else array.shape
            raise QuarlError(f"the {name} of its replay are {saved} and this run's {expected}")
    if not packed["begins"][0].all():
        raise QuarlError("its replay begins in the middle of a stack of frames")
