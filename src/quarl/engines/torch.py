"""torch in eager mode: the usual way to run a policy today, and therefore the baseline of every comparison.

fp32 runs just as a Stable-Baselines3 policy does. Other precisions are simulated in float32. Weights are the real
values of their codes or half floats, and the inputs of linear operators are moved to the grid of their codes. The last
bits of a row's result may depend on the batch size, because the matrix products of MKL sum in an order that depends on
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy import operators
from quarl.policy.formulas import FORMULAS
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, final_linear
from quarl.policy.operators import LEAKY_SLOPE, OBSERVATION, Linear, Op, QuantizedTensor, as_float32
from quarl.quant.affine import dequantize, fake_quantize, quantize_rows

Tensor = torch.Tensor
Function = Callable[..., Tensor]
ACTIVATIONS: dict[str, Function] = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": functional.elu,
    "leaky_relu": lambda x: functional.leaky_relu(x, LEAKY_SLOPE),
}
ARITHMETIC: dict[str, Function] = {
    **ACTIVATIONS,
    **{kind: getattr(torch, kind) for kind in ("add", "sub", "mul", "div", "log")},
    "min": lambda x, y: torch.minimum(x, torch.as_tensor(y)),
    "max": lambda x, y: torch.maximum(x, torch.as_tensor(y)),
}


class Torch:
    """A list of functions on torch tensors, called in order without gradients."""

    name = "torch"

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        self.measured = policy.spec.float_type == "fp32"
        self.batch = batch
        self.file_bytes = 4 * sum(op.weight.size + op.bias.size for op in policy.linear)
        """Bytes of the float32 weights and biases; the file of a state dict holds these and a little more."""
        self._shape = (batch, *policy.observation_shape)
        self._dtype = policy.observation_dtype
        self._output = policy.output
        self._steps: list[tuple[str, Function, tuple[str, ...]]] = []
        if policy.observation_dtype == "uint8":
            self._steps.append((OBSERVATION, Tensor.float, (OBSERVATION,)))
        for op in policy.ops:
            function = _on_grid(policy, op, _of_codes(policy, op, LOWERINGS[type(op)](op)))
            self._steps.append((op.name, function, op.inputs))

    @torch.inference_mode()
    def run(self, observations: Array) -> Array:
        """Return float32 outputs [batch, n] of observations [batch, *shape]."""
        if observations.shape != self._shape:
            raise QuarlError(f"observations are {observations.shape}, this engine runs {self._shape}")
        rows = np.ascontiguousarray(observations, self._dtype)
        # torch warns about read-only arrays, even if nothing writes to them.
        values = {OBSERVATION: torch.from_numpy(rows if rows.flags.writeable else rows.copy())}
        for name, function, inputs in self._steps:
            values[name] = function(*[values[source] for source in inputs])
        output: Array = values[self._output].numpy()
        return output


def load(policy: QuantizedPolicy, batch: int) -> Torch:
    """Return the policy ready to run in eager mode; torch is set to one thread, for the whole process."""
    torch.set_num_threads(1)
    return Torch(policy, batch)


def _fake_quantized_rows(x: Tensor, bits: int) -> Tensor:
    rows = x.flatten(1).numpy()
    return torch.from_numpy(dequantize(*quantize_rows(rows, bits))).reshape(x.shape)


def _of_codes(policy: QuantizedPolicy, op: Op, function: Function) -> Function:
    """Return the function with its input moved to the grid from which an integer layer reads it."""
    bits = policy.spec.activation_bits
    if bits is None or not isinstance(op, Linear) or not isinstance(op.weight, QuantizedTensor):
        return function
    if policy.spec.mode == "dynamic":
        return lambda x: function(_fake_quantized_rows(x, bits))
    grid = policy.grids[op.inputs[0]].qparams
    return lambda x: function(fake_quantize(x, grid))


def _on_grid(policy: QuantizedPolicy, op: Op, function: Function) -> Function:
    """Return the function, followed in static mode by the grid of its value if integer engines hold codes there."""
    behind = grid_behind(policy, op)
    if behind is None:
        return function
    grid = behind.qparams
    return lambda *inputs: fake_quantize(function(*inputs), grid)


def grid_behind(policy: QuantizedPolicy, op: Op) -> ActivationGrid | None:
    """Return the grid on which integer engines hold the operator's value in static mode."""
    inner = isinstance(op, Linear) and op.name not in final_linear(policy)
    function = isinstance(op, operators.Activation) and op.inputs[0] in policy.grids
    if inner or function or isinstance(op, operators.Rounded):
        return policy.grids.get(op.name)
    return None


def _linear(op: Linear) -> Function:
    weight, bias = torch.tensor(as_float32(op.weight)), torch.tensor(op.bias)
    if isinstance(op, operators.Conv2d):
        return lambda x: functional.conv2d(x, weight, bias, op.stride, op.padding)
    return lambda x: functional.linear(x, weight, bias)


def _normalize(op: operators.Normalize) -> Function:
    (mean, rest), factor = map(torch.tensor, op.mean_parts), torch.tensor(op.inverse_std)
    return lambda x: ((x - mean - rest) * factor).clamp(-op.clip, op.clip)


def _scale(op: operators.Scale) -> Function:
    factor = torch.tensor(op.factor.astype(np.float32))
    return lambda x: x * factor


def _layer_norm(op: operators.LayerNorm) -> Function:
    weight, bias = torch.tensor(op.weight), torch.tensor(op.bias)
    return lambda x: functional.layer_norm(x, weight.shape, weight, bias, op.epsilon)


def _activation(op: operators.Activation) -> Function:
    if op.kind in ACTIVATIONS:
        return ACTIVATIONS[op.kind]
    return lambda x: FORMULAS[op.kind](lambda kind, *values: ARITHMETIC[kind](*values), x, *op.settings)


def _pool(op: operators.Pool2d) -> Function:
    pool = functional.max_pool2d if op.kind == "max" else functional.avg_pool2d
    return lambda x: pool(x, op.kernel, op.stride, op.padding)


LOWERINGS: Mapping[type[Op], Callable[[Any], Function]] = {
    operators.Dense: _linear,
    operators.Conv2d: _linear,
    operators.Activation: _activation,
    operators.Softmax: lambda op: lambda x: x.unflatten(1, (-1, op.size)).softmax(-1).flatten(1),
    operators.Pool2d: _pool,
    operators.LayerNorm: _layer_norm,
    operators.L2Norm: lambda op: lambda x: functional.normalize(x, dim=-1, eps=op.epsilon),
    operators.Normalize: _normalize,
    operators.Scale: _scale,
    operators.Flatten: lambda op: lambda x: x.flatten(1),
    operators.Slice: lambda op: lambda x: x[:, op.start :][:, : math.prod(op.part)].reshape(-1, *op.part),
    operators.Concat: lambda op: lambda *inputs: torch.cat(inputs, dim=-1),
    operators.Add: lambda op: torch.add,
    operators.Mul: lambda op: torch.mul,
    operators.Rounded: lambda op: lambda x: x,
}
"""Function of each operator's inputs, with the real values of weights."""
