"""The judge: plays evaluation episodes with the learner's policy and with what the actors run."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl import stats
from quarl.actorq import wire
from quarl.actorq.channel import LocalChannel
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.evaluate import evaluate, once_more
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.ptq import quantize
from quarl.quant.spec import QuantSpec

Array = NDArray[Any]
FINAL_EPISODES = 20
"""At least so many after training."""
RUNNING = 2
"""Evaluations in a row that have to reach the target."""


class Judge:
    """Evaluations of one run, in order."""

    def __init__(self, config: ActorQConfig, template: Template, channel: LocalChannel) -> None:
        self.config, self.template, self.channel = config, template, channel
        self.packer_options: dict[str, Any] = {
            "actor_precision": config.actor_precision,
            "comm_bits": config.comm_bits,
            "weight_compress": config.weight_compress,
        }
        self.entries: list[dict[str, Any]] = []
        self.reached_s: float | None = None

    def judge(self, *, last: bool, **where: float) -> dict[str, Any]:
        """Returns of both policies now; where: clock and counters that belong to them."""
        episodes = max(self.config.eval_episodes, FINAL_EPISODES if last else 0)
        entry: dict[str, Any] = {**where, "episodes": episodes, "last": last}
        floats = self.channel.floats.pull()
        if floats is not None:
            exact = quantize(self.template.policy(floats.data.view(np.float32)), QuantSpec.parse("fp32"))
            entry |= {"version": floats.version, **self._play(exact, "return", episodes)}
            if last:
                artifact.write(exact, self.config.output / "policy-fp32.safetensors")
        packed = self.channel.packed.pull()
        if packed is not None:
            quantized = wire.unpack(packed.data)
            entry |= {"version_quantised": packed.version, **self._play(quantized, "return_quantised", episodes)}
            if last:
                name = f"policy-{quantized.spec.precision}.safetensors"
                artifact.write(quantized, self.config.output / name)
        self.entries.append(entry)
        if self.reached and self.reached_s is None:
            self.reached_s = float(where["clock_s"])
        return entry

    @property
    def reached(self) -> bool:
        """True when the last evaluations of the learner's policy all reach the target."""
        target, latest = self.config.target, self.entries[-RUNNING:]
        return target is not None and len(latest) == RUNNING and all(e.get("return", -np.inf) >= target for e in latest)

    def _play(self, policy: QuantizedPolicy, name: str, episodes: int) -> dict[str, float]:
        """Mean return and its interval; every evaluation has episodes of its own.

        They are played once more, in new environments, where one raises.
        """
        play = partial(
            evaluate,
            policy,
            episodes=episodes,
            seed=1000 * self.config.seed + len(self.entries),
            env_id=self.config.env,
            batch=min(episodes, 16),
            stochastic=False,
        )
        summary = stats.summary(once_more(play).returns, np.random.default_rng(0))
        return {name: summary.mean, f"{name}_low": summary.ci_low, f"{name}_high": summary.ci_high}
