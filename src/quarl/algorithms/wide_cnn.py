"""The Nature CNN in other widths: its kernels and strides (Mnih et al. 2015), with any number of filters."""

from __future__ import annotations

from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from quarl.errors import QuarlError
from quarl.readers.sb3_network import NATURE_CNN


class WideCNN(BaseFeaturesExtractor):
    """A feature extractor [B, features_dim] of images [B, C, H, W]: three convolutions and a dense layer, with ReLUs.

    Its parameters have the same names as those of Stable-Baselines3's NatureCNN.
    """

    def __init__(self, observation_space: spaces.Box, features_dim: int = 128, filters: int = 128) -> None:
        """Build the layers.

        Args:
            observation_space: Space of images [C, H, W].
            features_dim: Number of features.
            filters: Filters of each convolution.
        """
        if len(observation_space.shape) != 3:
            raise QuarlError(
                f"WideCNN requires images [C, H, W]; these observations have shape {observation_space.shape}"
            )
        super().__init__(observation_space, features_dim)
        channels, *size = observation_space.shape
        layers: list[nn.Module] = []
        for _, kernel, stride in NATURE_CNN:
            layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
            channels, size = filters, [(length - kernel) // stride + 1 for length in size]
            if min(size) < 1:
                raise QuarlError(f"images of {observation_space.shape[1:]} are too small for the Nature CNN's kernels")
        self.cnn = nn.Sequential(*layers, nn.Flatten())
        self.linear = nn.Sequential(nn.Linear(filters * size[0] * size[1], features_dim), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.linear(self.cnn(observations))
        return features
