"""The networks of D4PG: a plain MLP actor as in TD3, and a critic that predicts a distribution over returns."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import Tensor, nn

NET_ARCH = {"pi": [256, 256, 256], "qf": [512, 512, 256]}
"""Hidden layers; the critic's are the original ActorQ's, whose actors had three layers of 2,048 or more."""
LAST_LAYER_VARIANCE = 1e-4
"""Variance of a fresh actor's output over the mean square of its last hidden layer: actions start near zero."""
FRESH_ATOMS = 2.0
"""Number of atoms over which a fresh critic's probability falls by e, on both sides of a return of 0.

Equal probabilities would mean the middle of the support: on [0, 100] a return of 50 from any state, which takes
thousands of updates to unlearn. Meanwhile the actor would follow the critic's errors into the corners of tanh.
"""


class D4PGActor(Actor):
    """An actor of actions [B, A] in [-1, 1]: TD3's network, started near zero and squashed in float32."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        *hidden, last = (module for module in self.mu if isinstance(module, nn.Linear))
        for layer in hidden:
            initialise(layer)
        nn.init.normal_(last.weight, std=math.sqrt(LAST_LAYER_VARIANCE / last.in_features))
        nn.init.zeros_(last.bias)

    def before_tanh(self, observations: Tensor) -> Tensor:
        """Return the input of tanh [B, A], float32."""
        *layers, _tanh = self.mu
        output: Tensor = self.extract_features(observations, self.features_extractor)
        for layer in layers:
            output = layer(output)
        # The gradient of tanh(x) in bfloat16 is 0 from x = 3.1 on, since tanh(x) is exactly 1: a saturated action stays
        # so.
        return output.float()

    def forward(self, obs: Tensor) -> Tensor:
        return self.before_tanh(obs).tanh()


class CategoricalCritic(BaseModel):
    """A critic of logits [B, num_atoms] of the return; the atoms are evenly spaced on [v_min, v_max], once known.

    Layer normalization and tanh follow the first layer, ELU the others, as in Acme's LayerNormMLP: the scale of
    observations does not reach the deeper layers.
    """

    features_extractor: BaseFeaturesExtractor
    atoms: Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        net_arch: list[int],
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        support: tuple[float | None, float | None, int],
        normalize_images: bool = True,
    ) -> None:
        """Build the layers.

        Args:
            observation_space: Space of the observations.
            action_space: Space of the actions.
            net_arch: Units of the hidden layers.
            features_extractor: First part of the network.
            features_dim: Number of its features.
            support: First and last atom, each None if unknown, and the number of atoms.
            normalize_images: Divide images by 255.
        """
        super().__init__(
            observation_space,
            action_space,
            features_extractor=features_extractor,
            normalize_images=normalize_images,
        )
        v_min, v_max, num_atoms = support
        self.register_buffer("atoms", torch.zeros(num_atoms))
        # Layer normalization and tanh after the first layer, ELU after the others.
        layers: list[nn.Module] = []
        width = features_dim + get_action_dim(action_space)
        for num_units in net_arch:
            layers.append(initialise(nn.Linear(width, num_units)))
            layers += [nn.ELU()] if len(layers) > 1 else [nn.LayerNorm(num_units), nn.Tanh()]
            width = num_units
        self.torso = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_atoms)
        with torch.no_grad():  # until the support is known, assume that no return is below 0
            self.head.bias.copy_(-torch.arange(num_atoms) / FRESH_ATOMS)
        if v_min is not None and v_max is not None:
            self.support_on(v_min, v_max)

    @property
    def support(self) -> tuple[float, float] | None:
        """First and last atom; None before they are known. Checkpoints contain them, since atoms are a buffer."""
        low, high = float(self.atoms[0]), float(self.atoms[-1])
        return (low, high) if low < high else None

    @torch.no_grad()
    def support_on(self, v_min: float, v_max: float) -> None:
        """Move the atoms to [v_min, v_max]: a fresh critic then expects 0, any other roughly its earlier values."""
        num_atoms, old = len(self.atoms), self.support
        self.atoms.copy_(torch.linspace(v_min, v_max, num_atoms))
        if old is None:
            spacing = (v_max - v_min) / (num_atoms - 1)
            self.head.bias.copy_(-(self.atoms - min(max(v_min, 0.0), v_max)).abs() / (FRESH_ATOMS * spacing))
            return
        low, high = old
        spacing = (high - low) / (num_atoms - 1)
        places = ((self.atoms - low) / spacing).clamp(0, num_atoms - 1)
        lower = places.long().clamp(max=num_atoms - 2)
        share = places - lower
        self.head.weight.copy_(torch.lerp(self.head.weight[lower], self.head.weight[lower + 1], share[:, None]))
        self.head.bias.copy_(torch.lerp(self.head.bias[lower], self.head.bias[lower + 1], share))
        self.head.bias.sub_((self.atoms - self.atoms.clamp(low, high)).abs() / (FRESH_ATOMS * spacing))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        features = self.extract_features(observations, self.features_extractor)
        hidden = self.torso(torch.cat([features, actions], dim=1))
        # bfloat16 has 8 bits, too few for logits whose small differences, times 100, are the value of an action
        with torch.autocast(hidden.device.type, enabled=False):
            logits: Tensor = self.head(hidden.float())
        return logits

    def value(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the expected return [B]."""
        probabilities = self(observations, actions).softmax(dim=1)
        with torch.autocast(probabilities.device.type, enabled=False):  # bfloat16 cannot represent the atoms
            mean: Tensor = probabilities.float() @ self.atoms
        return mean


class D4PGPolicy(TD3Policy):
    """A policy of actor, critic and their targets; `net_arch` as in TD3, dict(pi=[...], qf=[...])."""

    actor: D4PGActor
    actor_target: D4PGActor
    critic: CategoricalCritic  # type: ignore[assignment]  # SB3's is a sibling of it, not a base
    critic_target: CategoricalCritic  # type: ignore[assignment]  # as above

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        v_min: float | None,
        v_max: float | None,
        num_atoms: int,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Build actor, critic and their targets.

        Args:
            observation_space: Space of the observations.
            action_space: Space of the actions.
            lr_schedule: Learning rate over the remaining share of training.
            net_arch: Hidden layers; None means NET_ARCH.
            v_min: First atom; None if unknown.
            v_max: Last atom; None if unknown.
            num_atoms: Number of atoms.
            optimizer_class: Class of the optimizers.
            optimizer_kwargs: Arguments of the optimizers.
            **kwargs: Further arguments of TD3's policy.
        """
        self.support = (v_min, v_max, num_atoms)  # the base class builds the critics, so set this before
        if optimizer_kwargs is None:
            # The fused optimizer makes one pass over the weights instead of four: Adam is memory-bound.
            optimizer_kwargs = {"fused": True} if optimizer_class is torch.optim.Adam else {}
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            NET_ARCH if net_arch is None else net_arch,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            n_critics=1,
            share_features_extractor=False,
            **kwargs,
        )

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> D4PGActor:
        return D4PGActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)

    def make_critic(  # type: ignore[override]  # another critic is the point
        self, features_extractor: BaseFeaturesExtractor | None = None
    ) -> CategoricalCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        for name in ("n_critics", "share_features_extractor", "activation_fn"):
            del kwargs[name]
        return CategoricalCritic(**kwargs, support=self.support).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        for name in ("n_critics", "share_features_extractor"):
            del data[name]
        v_min, v_max, num_atoms = self.support
        return data | {"v_min": v_min, "v_max": v_max, "num_atoms": num_atoms}


class D4PGCnnPolicy(D4PGPolicy):
    """A policy for images: actor and critic each begin with a NatureCNN."""

    def __init__(
        self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any
    ) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


def initialise(layer: nn.Linear) -> nn.Linear:
    """Return the layer without bias and with weights uniform on ±1/sqrt(out), VarianceScaling(1/3, fan_out)."""
    bound = 1 / math.sqrt(layer.out_features)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer
