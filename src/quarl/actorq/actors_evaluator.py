"""The evaluator: plays evaluation episodes with the learner's policy and with the actors' quantized policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quarl import stats
from quarl.actorq import wire
from quarl.actorq.counters import Learner
from quarl.actorq.environments import environment_of
from quarl.actorq.roles import Channel
from quarl.actorq.weights import Template
from quarl.calibration import quantize
from quarl.config import ActorQConfig
from quarl.files import read_rows, write_rows
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import EXACT
from quarl.runs.evaluator import Evaluator
from quarl.runs.tracking import make_logger, record_evaluation

FINAL_EPISODES = 20
"""Minimum number of episodes of the final evaluation."""
RUNNING = 2
"""Number of consecutive evaluations that must reach the target."""
NUMBERS = ("clock_s", "timesteps", "updates", "return")
"""Keys that every row of a run's evaluation file has."""


class ActorsEvaluator(Evaluator):
    """The ordered evaluations of `quarl actorq`, of the learner's policy and of the actors' policy."""

    config: ActorQConfig

    def __init__(self, config: ActorQConfig, template: Template, channel: Channel, say: Callable[[str], None]) -> None:
        """Open the run's logger and evaluation file.

        Args:
            config: Options of the run.
            template: Layout of the learner's weights.
            channel: Channel that the policies are read from.
            say: Receives one line for each evaluation.
        """
        super().__init__(config, say)
        self.template, self.channel, self._environment = template, channel, environment_of(config)
        self.logger, self._path = make_logger(config, lambda: config.output, say), config.output / "evaluations.jsonl"
        self.entries: list[dict[str, Any]] = []
        self.reached_s: float | None = None

    def evaluate(self, *, last: bool) -> None:
        """Append an evaluation of both current policies, with the clock and counters that belong to it."""
        cells = self.channel.counters.learner
        episodes = self.config.eval_episodes
        episodes = max(episodes, FINAL_EPISODES) if episodes and last else episodes
        # Read the clock and counters before the episodes are played.
        entry: dict[str, Any] = {
            "clock_s": float(cells[Learner.CLOCK_S]),
            "timesteps": int(cells[Learner.TIMESTEPS]),
            "updates": int(cells[Learner.UPDATES]),
            "episodes": episodes,
            "last": last,
        }
        if self.config.qat is not None:
            entry["trained_for"] = bool(cells[Learner.TRAINED_FOR])
        # Play the learner's policy in float32.
        floats = self.channel.floats.pull()
        if floats is not None:
            policy = self.template.policy(floats.data.view(np.float32))
            exact = quantize(self._environment.told(policy), EXACT)
            entry |= {"version": floats.version, **self._play(exact, "return", episodes)}
            if last:
                artifact.write(exact, self.config.output / "policy-fp32.safetensors")
        # Play the policy that the actors run.
        packed = self.channel.packed.pull()
        if packed is not None:
            quantized = self._environment.told(wire.unpack(packed.data))
            entry |= {"version_quantised": packed.version, **self._play(quantized, "return_quantised", episodes)}
            if last:
                artifact.write(quantized, self.config.output / f"policy-{self._sent(quantized)}.safetensors")
        # Log and store the entry.
        if episodes:
            self.logger.dump(entry["timesteps"])
            self._add(entry)
            self._files.write(lambda: write_rows(self._path, self.entries))

    def resume(self, timesteps: int) -> None:
        """Restore the evaluations up to step `timesteps`; drop later ones, whose training was not saved."""
        for entry in read_rows(self._path, timesteps, NUMBERS):
            self._add(entry)
        self._files.write(lambda: write_rows(self._path, self.entries))

    def has_concluded(self, timesteps: int) -> bool:
        """Return True if the final evaluation at `timesteps` was made before the run was resumed."""
        return bool(self.entries) and bool(self.entries[-1].get("last")) and self.entries[-1]["timesteps"] == timesteps

    def _add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        if self.reached and self.reached_s is None:
            self.reached_s = float(entry["clock_s"])

    def _sent(self, quantized: QuantizedPolicy) -> str:
        """Return the name of the actors' policy, with the wire width if float weights were rounded for transport."""
        precision, bits = quantized.spec.precision, self.config.comm_bits
        return precision if bits is None or quantized.spec.float_type is None else f"{precision}-comm{bits}"

    @property
    def reached(self) -> bool:
        """True if the most recent evaluations of the learner's policy all reach the target.

        The final evaluation does not count: it plays the same weights as the one before it. Nor do evaluations of a
        policy that is not yet trained as --qat asks.
        """
        qat = self.config.qat is not None
        counted = [entry for entry in self.entries if not entry.get("last") and entry.get("trained_for", not qat)]
        target, latest = self.config.target, counted[-RUNNING:]
        return target is not None and len(latest) == RUNNING and all(e.get("return", -np.inf) >= target for e in latest)

    def _play(self, policy: QuantizedPolicy, name: str, episodes: int) -> dict[str, float | None]:
        """Return the mean return and its interval, {} without episodes; each evaluation has its own episode seeds."""
        if not episodes:
            return {}
        seed = 1000 * self.config.seed + len(self.entries)
        played = self.play(policy, environment=self._environment, episodes=episodes, seed=seed, stochastic=False)
        record_evaluation(self.logger, played, name.removeprefix("return"))
        summary = stats.summary(played.returns, np.random.default_rng(0))
        return {name: summary.mean, f"{name}_low": summary.ci_low, f"{name}_high": summary.ci_high}
