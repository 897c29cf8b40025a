"""The support of D4PG's returns: derived from rewards, widened if returns grow, and checked against them."""

from __future__ import annotations

from collections.abc import Callable

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from quarl.algorithms.d4pg_policy import CategoricalCritic
from quarl.errors import QuarlError

LEAST_LEFT = 1e-3
"""Minimum of 1 - gamma: no return counts more than a thousand steps."""


def check_support(num_atoms: int, v_min: float | None, v_max: float | None) -> None:
    """Raise QuarlError unless the given ends and atoms can be a support.

    Args:
        num_atoms: Number of atoms.
        v_min: Lower end; None until it is found.
        v_max: Upper end; None until it is found.
    """
    if num_atoms < 2 or (v_min is not None and v_max is not None and not v_min < v_max):
        raise QuarlError(
            f"no support of {num_atoms} atoms on [{v_min}, {v_max}]; use v_min < v_max and 2 or more atoms"
        )


def find(lasting: Tensor, left: float) -> tuple[float, float]:
    """Return the support (v_min, v_max) for returns of which `lasting` [B, 1] are samples, one for each row of replay.

    If no |r| is above 1, as in DM Control, the reach is the bound 1 / (1 - gamma) of returns. Otherwise it is twice the
    mean size, since states are better and worse than the mean. An end whose sign no reward has is 0.

    Args:
        lasting: Values r / (1 - gamma), the return if the row's reward r came forever, or r if an episode ended
            with it. Their mean is about the value of the policy that collected the rows, however many steps a row
            sums: r_1 + ... + gamma^(n-1) r_n over 1 - gamma^n is such a return, too.
        left: Value of 1 - gamma.
    """
    size = lasting.abs()
    # a sum of n rewards of 1 may be slightly larger
    reach = _rounded(1 / left if float(size.max()) * left < 1.001 else 2 * float(size.mean()))
    below, above = bool((lasting < 0).any()), bool((lasting > 0).any())
    return -reach if below else 0.0, reach if above or not below else 0.0


class FindsSupport(OffPolicyAlgorithm):
    """An off-policy algorithm whose critics predict returns on a support that the rewards determine."""

    critic: CategoricalCritic
    critic_target: CategoricalCritic
    say: Callable[[str], None]

    def fit_support(self, batch: ReplayBufferSamples) -> None:
        """Set the missing ends of the critics' support before their first update.

        Explicit ends are compared with the rewards; a warning follows if they miss the mean.

        Raises:
            QuarlError: If the explicit support contains no return.
        """
        going_on = (self.gamma if batch.discounts is None else batch.discounts) * (1 - batch.dones)
        lasting, left = batch.rewards / (1 - going_on).clamp(min=LEAST_LEFT), max(1 - self.gamma, LEAST_LEFT)
        ends = find(lasting, left)
        low, high = (end if given is None else given for given, end in zip(self._given_ends(), ends, strict=True))
        mean = float(batch.rewards.mean() / (1 - going_on.mean()).clamp(min=LEAST_LEFT))
        met = f"rewards so far are worth {mean:.4g} at gamma {self.gamma:g}"
        advice = f"set --params v_min:{ends[0]:.4g} v_max:{ends[1]:.4g}, or neither"
        if min(high, ends[1]) <= max(low, ends[0]):
            raise QuarlError(f"D4PG's support [{low:.4g}, {high:.4g}] contains no return: {met}; {advice}")
        if self.critic.support is None:
            self._move_support(low, high)
            self.say(f"D4PG's support of returns is [{low:.4g}, {high:.4g}]: {met}")
            return
        if not low <= mean <= high:
            self.say(f"D4PG's support [{low:.4g}, {high:.4g}] does not match the rewards: {met}; {advice}")

    def widen_support(self, expected: Tensor) -> None:
        """Move an end that was not explicit to twice the expected return beyond it; `expected` is of a batch [B]."""
        support, given = self.critic.support, self._given_ends()
        assert support is not None
        least, most = float(expected.min()), float(expected.max())
        low = _rounded(2 * least) if given[0] is None and least < support[0] else support[0]
        high = _rounded(2 * most) if given[1] is None and most > support[1] else support[1]
        if (low, high) != support:
            self._move_support(low, high)
            self.say(f"D4PG's support of returns is [{low:.4g}, {high:.4g}] now: {least:.4g} to {most:.4g} expected")

    def _given_ends(self) -> tuple[float | None, float | None]:
        assert self.policy_kwargs is not None
        return self.policy_kwargs["v_min"], self.policy_kwargs["v_max"]

    def _move_support(self, low: float, high: float) -> None:
        for critic in (self.critic, self.critic_target):
            critic.support_on(low, high)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")  # the displayed value
