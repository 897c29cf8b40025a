"""The support of D4PG's returns: found from the rewards that come, widened where they grow, and compared with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from quarl.errors import QuarlError

if TYPE_CHECKING:
    from quarl.algorithms.d4pg import D4PG

LEAST_LEFT = 1e-3
"""1 - gamma at least: no return counts more than a thousand steps."""


def find(lasting: Tensor, left: float) -> tuple[float, float]:
    """The support (v_min, v_max) for returns of which `lasting` [B, 1] are samples, one for each row of replay.

    lasting: r / (1 - gamma), the return if the row's reward r came for ever, and r where an episode ended with it.
    Its mean is about the value of whoever gathered the rows, however many steps a row sums: r_1 + ... + gamma^(n-1) r_n
    over 1 - gamma^n is such a return too. left: 1 - gamma. Where no |r| is above 1, as in DM Control, the reach is the
    bound 1 / (1 - gamma) of returns; else twice the mean size, as states are better and worse than the mean. To a side
    whose sign no reward has it is 0.
    """
    size = lasting.abs()
    # a sum of n rewards of 1 may come out a little larger
    reach = _rounded(1 / left if float(size.max()) * left < 1.001 else 2 * float(size.mean()))
    below, above = bool((lasting < 0).any()), bool((lasting > 0).any())
    return -reach if below else 0.0, reach if above or not below else 0.0


def fit(model: D4PG, batch: ReplayBufferSamples) -> None:
    """Gives the critics, before their first update, what was not given of the support.

    What was given is compared with the rewards: QuarlError where it lies beside theirs, a line where their mean does.
    """
    going_on = (model.gamma if batch.discounts is None else batch.discounts) * (1 - batch.dones)
    lasting, left = batch.rewards / (1 - going_on).clamp(min=LEAST_LEFT), max(1 - model.gamma, LEAST_LEFT)
    ends = find(lasting, left)
    low, high = (end if given is None else given for given, end in zip(_given(model), ends, strict=True))
    mean = float(batch.rewards.mean() / (1 - going_on.mean()).clamp(min=LEAST_LEFT))
    met = f"rewards so far are worth {mean:.4g} at gamma {model.gamma:g}"
    advice = f"give --params v_min:{ends[0]:.4g} v_max:{ends[1]:.4g}, or neither"
    if min(high, ends[1]) <= max(low, ends[0]):
        raise QuarlError(f"D4PG's support [{low:.4g}, {high:.4g}] holds no return: {met}; {advice}")
    if model.critic.support is None:
        _move(model, low, high)
        model.say(f"D4PG's support of returns is [{low:.4g}, {high:.4g}]: {met}")
        return
    if not low <= mean <= high:
        model.say(f"D4PG's support [{low:.4g}, {high:.4g}] is not theirs: {met}; {advice}")


def widen(model: D4PG, expected: Tensor) -> None:
    """Moves an end that was not given to twice the return that is expected beyond it; expected: of a batch [B]."""
    support, given = model.critic.support, _given(model)
    assert support is not None
    least, most = float(expected.min()), float(expected.max())
    low = _rounded(2 * least) if given[0] is None and least < support[0] else support[0]
    high = _rounded(2 * most) if given[1] is None and most > support[1] else support[1]
    if (low, high) != support:
        _move(model, low, high)
        model.say(f"D4PG's support of returns is [{low:.4g}, {high:.4g}] from now on: {least:.4g} to {most:.4g} came")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")  # as it is shown


def _given(model: D4PG) -> tuple[float | None, float | None]:
    assert model.policy_kwargs is not None
    return model.policy_kwargs["v_min"], model.policy_kwargs["v_max"]


def _move(model: D4PG, low: float, high: float) -> None:
    for critic in (model.critic, model.critic_target):
        critic.support_on(low, high)
