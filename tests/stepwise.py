"""ActorQ's replay behind Stable-Baselines3's own loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.actorq.replay import SegmentReplay


class Stepwise(SegmentReplay):
    """Takes steps of Stable-Baselines3's own loop, too, as those of one actor."""

    sequence = -1

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        rows = np.zeros(self.n_envs, self.segment_dtype)
        timeouts = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        self.sequence += 1
        rows["sequence"], rows["environment"] = self.sequence, np.arange(self.n_envs)
        for name, values in (("observation", obs), ("next_observation", next_obs), ("action", action)):
            rows[name] = np.reshape(values, rows[name].shape)
        rows["reward"] = reward
        rows["terminated"] = np.asarray(done, bool) & ~timeouts
        rows["truncated"] = timeouts
        self.insert(rows)
