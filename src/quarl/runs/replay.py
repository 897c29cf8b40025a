"""The contents of a Stable-Baselines3 replay buffer, for a checkpoint."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.runs import stacked_frames
from quarl.runs.checkpoint_model import difference

IMAGES = ("observations", "next_observations")
FIELDS = (*IMAGES, "actions", "rewards", "dones", "timeouts")
CURSOR = "cursor"


class StoredReplay:
    """A buffer that can be saved: its filled rows [T, N, ...], and where it writes next.

    Stacked frames are saved once each: 0.7 GB instead of the 5.6 that 100,000 steps of an Atari game fill.

    Samples are drawn with numpy's global generator, which is in every checkpoint.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def state(self) -> dict[str, Array]:
        """The filled rows by field, and the cursor; views, but for stacked frames."""
        buffer = self.buffer
        rows = self._fields(self._rows(buffer.pos, buffer.full))
        packed = stacked_frames.pack(rows["observations"], rows.get("next_observations"))
        if packed is not None:
            rows = {name: array for name, array in rows.items() if name not in IMAGES} | packed
        return {**rows, CURSOR: np.array([buffer.pos, buffer.full], np.int64)}

    def load_state(self, state: dict[str, Array]) -> None:
        """The inverse; copies. QuarlError where the rows are none of this buffer's."""
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
            stacked_frames.unpack(state, images["observations"], images.get("next_observations"))
        for name, array in saved.items():
            rows[name][:] = array
        buffer.pos, buffer.full = pos, bool(full)

    def end_episodes(self) -> None:
        """Marks the newest row as the last of its episodes: what comes next has not followed from it."""
        buffer = self.buffer
        if not (buffer.pos or buffer.full):
            return
        newest = (buffer.pos - 1) % buffer.buffer_size
        if buffer.optimize_memory_usage:  # the next row will overwrite what followed: there is nothing to bootstrap on
            buffer.dones[newest] = 1.0
        else:
            buffer.timeouts[newest] = np.maximum(buffer.timeouts[newest], 1.0 - buffer.dones[newest])

    def _fields(self, rows: int) -> dict[str, Array]:
        """Views of the first rows."""
        return {name: getattr(self.buffer, name)[:rows] for name in FIELDS if hasattr(self.buffer, name)}

    def _rows(self, pos: int, full: bool) -> int:
        """Rows that hold something; where observations are stored once, the next one is among them."""
        if full:
            return self.buffer.buffer_size
        return min(pos + int(self.buffer.optimize_memory_usage), self.buffer.buffer_size)
