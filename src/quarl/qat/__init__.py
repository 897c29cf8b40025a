"""Quantization-aware training: fake quantization in the forward passes of a Stable-Baselines3 model that learns.

>>> model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=128)
>>> qat.prepare(model, "w4a8")
>>> model = model.learn(256, callback=qat.QuantDelay())
>>> qat.spec_of(model).weight_bits, qat.is_active(model), qat.is_ready(model), qat.switched_at(model)
(4, True, True, 128)
>>> qat.convert(model)
Agent(ppo CartPole-v1, int4 static, 4-64-64-2, 4,480 weights)

Fake quantization applies to these. (Krishnan et al. 2022, algorithm 2, quantizes the whole architecture.)

- Rollouts and evaluations, which play the policy that will be deployed.
- Every gradient step.
- Target networks, which are earlier versions of the trained ones.

Critics and value networks are not deployed and stay float unless `critic` is set. The last layer's output, its bias and
normalization statistics are float too. Biases of layers between integers are rounded to the steps of these layers'
sums, as kernels add them.
"""

from quarl.qat.convert import convert, layer_bits, quantized_policy, trained_grids
from quarl.qat.delay import QuantDelay
from quarl.qat.prepare import follow, is_active, is_ready, prepare, spec_of, switched_at
from quarl.quant.spec import QatSpec

__all__ = [
    "QatSpec",
    "QuantDelay",
    "convert",
    "follow",
    "is_active",
    "is_ready",
    "layer_bits",
    "prepare",
    "quantized_policy",
    "spec_of",
    "switched_at",
    "trained_grids",
]
