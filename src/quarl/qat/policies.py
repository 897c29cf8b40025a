"""Policy classes that carry quantization-aware training, so that Stable-Baselines3's own `load` restores it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy, BasePolicy
from stable_baselines3.dqn.policies import CnnPolicy as DQNCnnPolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import CnnPolicy as SACCnnPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import CnnPolicy as TD3CnnPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from quarl.algorithms.d4pg_policy import D4PGCnnPolicy, D4PGPolicy
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.trained import KEY, TRAINED_RANGES, NetworkPlan
from quarl.qat.fake_layers import install
from quarl.qat.graphs import networks_of
from quarl.qat.ranges import RangeTable
from quarl.quant.spec import QatSpec

TARGET = "_target"


class QatPolicy(BasePolicy):
    """A Stable-Baselines3 policy whose layers are fake-quantized from a step of the training on.

    `qat` is {"spec": QatSpec.to_json(), "networks": {name: NetworkPlan.to_json()}}, as `qat.prepare` builds it.
    """

    qat: Mapping[str, Any]
    spec: QatSpec
    followed = False
    """True if a callback puts its ranges in force between rollouts."""

    def __init__(self, *args: Any, qat: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.carry(qat)

    def carry(self, qat: Mapping[str, Any]) -> None:
        """Add quantizers to the networks."""
        self.qat = qat
        self.spec = spec = QatSpec.from_json(qat["spec"])
        plans = {name: NetworkPlan.from_json(plan) for name, plan in qat["networks"].items()}
        for name, network in networks_of(self).items():
            plan = plans.get(name.removesuffix(TARGET))
            if plan is None:
                continue
            install(network, plan, spec, target=name.endswith(TARGET))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load parameters as nn.Module does.

        Args:
            state_dict: Parameters and buffers by name.
            strict: Require exactly the names of this policy.
            assign: Replace tensors instead of copying into them.

        Returns:
            Missing and unexpected names.

        Raises:
            QuarlError: The parameters belong to a model that was not prepared and have no ranges.
        """
        if strict and not any(TRAINED_RANGES in name for name in state_dict):
            raise QuarlError("these parameters belong to a model that was not prepared: load them before qat.prepare")
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def set_training_mode(self, mode: bool) -> None:
        """Warn once if training begins without a callback that updates ranges and activates fake quantization."""
        if mode and not self.followed:
            self.followed = True
            warnings.warn(
                f"this policy is prepared for {self.spec.precision} but trained without qat.QuantDelay: its ranges "
                "do not change; pass learn(..., callback=qat.QuantDelay())",
                stacklevel=3,
            )
        super().set_training_mode(mode)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), KEY: self.qat}


class QatActorCriticPolicy(QatPolicy, ActorCriticPolicy):
    """The policy of PPO and A2C."""


class QatActorCriticCnnPolicy(QatPolicy, ActorCriticCnnPolicy):
    """The policy of PPO and A2C on images."""


class QatDQNPolicy(QatPolicy, DQNPolicy):
    """The policy of DQN."""


class QatDQNCnnPolicy(QatPolicy, DQNCnnPolicy):
    """The policy of DQN on images."""


class QatTD3Policy(QatPolicy, TD3Policy):
    """The policy of TD3 and DDPG."""


class QatTD3CnnPolicy(QatPolicy, TD3CnnPolicy):
    """The policy of TD3 and DDPG on images."""


class QatSACPolicy(QatPolicy, SACPolicy):
    """The policy of SAC."""


class QatSACCnnPolicy(QatPolicy, SACCnnPolicy):
    """The policy of SAC on images."""


class QatD4PGPolicy(QatPolicy, D4PGPolicy):
    """The policy of D4PG."""


class QatD4PGCnnPolicy(QatPolicy, D4PGCnnPolicy):
    """The policy of D4PG on images."""


CLASSES: Mapping[type, type[QatPolicy]] = {cls.__bases__[1]: cls for cls in QatPolicy.__subclasses__()}
"""The class that also carries quantization-aware training, by policy class."""


def carrying(policy: BasePolicy) -> type[QatPolicy]:
    """Return the class of a policy after preparation."""
    carrier = CLASSES.get(type(policy))
    if carrier is None:
        raise UnsupportedError(
            f"{type(policy).__name__} does not support quantization-aware training; use MlpPolicy and "
            "CnnPolicy of PPO, A2C, DQN, DDPG, TD3, SAC and D4PG"
        )
    return carrier


def tables_of(policy: nn.Module) -> dict[str, RangeTable]:
    """Return the range tables of a policy's networks by name, including targets.

    An empty dict if it was not prepared.
    """
    tables = {name: getattr(network, TRAINED_RANGES, None) for name, network in networks_of(policy).items()}
    return {name: table for name, table in tables.items() if isinstance(table, RangeTable)}
