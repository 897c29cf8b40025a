"""A quantized policy in torch with trainable codes, steps and biases; its forward pass equals the integer kernels'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quarl.engines.torch import LOWERINGS, grid_behind
from quarl.fake_quantization import on_row_grids, on_tensor_grid, on_unit_grid
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import OBSERVATION, Conv2d, LayerNorm, Linear, Op, QuantizedTensor, as_float32
from quarl.quant.affine import unit_grid

ROOM = 0.4
"""Largest initial distance of a latent weight from its code in steps, so that rounding it gives the calibrated code."""


class Layer(nn.Module):
    """A linear operator with trainable latent weights, steps and bias.

    Weights and bias are in units of their steps; each output channel has the logarithm of its step.
    """

    def __init__(self, exact: Linear, rounded: Linear) -> None:
        """Prepare the parameters; `exact` is the operator in float32, `rounded` has the codes chosen by calibration."""
        super().__init__()
        weight = rounded.weight
        assert isinstance(weight, QuantizedTensor)
        self.op, self.weight, self.bits = rounded, weight, weight.bits
        self.q = unit_grid(weight.bits, mid_rise=weight.mid_rise)
        self.halves = 2 if weight.mid_rise else 1  # odd codes count half steps
        self.along = (-1, *(1,) * (len(weight.shape) - 1))
        self.first_step = torch.tensor(weight.scale * self.halves)
        levels = torch.tensor(weight.codes / self.halves, dtype=torch.float32)
        wanted = torch.tensor(as_float32(exact.weight)) / self.first_step.reshape(self.along)
        end = self.q.qmax - self.q.zero_point
        beyond = (levels.abs() >= end) & (wanted * levels.sign() > end)  # clipped weights may be a little further out
        room = torch.where(beyond, 0.5 - 1e-3, ROOM)
        self.latent = nn.Parameter(torch.minimum(torch.maximum(wanted, levels - room), levels + room))
        self.log_step = nn.Parameter(self.first_step.log())
        self.bias = nn.Parameter(torch.tensor(rounded.bias) / self.first_step)

    def forward(self, x: Tensor) -> Tensor:
        """Return the operator's output for inputs on their grid."""
        weight = on_unit_grid(self.latent, self.q) * self.log_step.exp().reshape(self.along)
        bias = self.bias * self.first_step
        if isinstance(self.op, Conv2d):
            return functional.conv2d(x, weight, bias, self.op.stride, self.op.padding)
        return functional.linear(x, weight, bias)

    @torch.no_grad()
    def operator(self) -> Linear:
        """Return the operator with the present codes, scales and biases."""
        steps, levels = self.log_step.exp(), on_unit_grid(self.latent, self.q)
        learned = replace(
            self.weight,
            codes=(levels * self.halves).round().numpy().astype(self.weight.codes.dtype),
            scale=(steps / self.halves).numpy().copy(),
        )
        return replace(self.op, weight=learned, bias=(self.bias * self.first_step).numpy().copy())


class Norm(nn.LayerNorm):
    """A LayerNorm with trainable gain and offset."""

    def __init__(self, op: LayerNorm) -> None:
        super().__init__(op.weight.shape, op.epsilon)
        self.op = op
        self.weight, self.bias = nn.Parameter(torch.tensor(op.weight)), nn.Parameter(torch.tensor(op.bias))

    @torch.no_grad()
    def operator(self) -> LayerNorm:
        """Return the operator with the present gain and offset."""
        return replace(self.op, weight=self.weight.numpy().copy(), bias=self.bias.numpy().copy())


class Student(nn.Module):
    """The network of a quantized policy; layers left in float are not trained."""

    def __init__(self, exact: Policy, start: QuantizedPolicy) -> None:
        """Build the network.

        Args:
            exact: Float policy whose weights were rounded (`Calibrated.rewrite`).
            start: Policy after calibration.
        """
        super().__init__()
        self.start = start
        exact_ops = {op.name: op for op in exact.linear}
        self.learning: dict[str, Layer | Norm] = {}
        for op in start.ops:
            if isinstance(op, Linear) and isinstance(op.weight, QuantizedTensor):
                self.learning[op.name] = Layer(exact_ops[op.name], op)
            elif isinstance(op, LayerNorm):
                self.learning[op.name] = Norm(op)
        self.modules_of = nn.ModuleList(self.learning.values())
        self.functions: dict[str, Any] = {
            op.name: self.learning.get(op.name) or LOWERINGS[type(op)](op) for op in start.ops
        }

    def forward(self, observations: Tensor) -> Tensor:
        """Return outputs [B, n] for raw observations [B, *shape]."""
        values = {OBSERVATION: observations.float()}
        for op in self.start.ops:
            inputs = [self._read(op, values[name]) for name in op.inputs]
            value = self.functions[op.name](*inputs)
            grid = grid_behind(self.start, op)
            values[op.name] = value if grid is None else on_tensor_grid(value, grid)
        return values[self.start.output]

    def along(self, rows: Tensor) -> Tensor:
        """Return outputs [B * T, n] for sequences of rows [B, T, K + S], along which the network carries its own state.

        It begins with the state of the first row. A row with the initial state starts an episode.
        """
        start, size = torch.from_numpy(self.start.state), self.start.seen[0]
        state, outputs = rows[:, 0, size:], []
        for row in rows.unbind(1):
            begins = (row[:, size:] == start).all(1, keepdim=True)
            outputs.append(self(torch.cat([row[:, :size], torch.where(begins, start, state)], 1)))
            state = outputs[-1][:, self.start.head.width :]
        return torch.stack(outputs, 1).flatten(0, 1)

    def _read(self, op: Op, x: Tensor) -> Tensor:
        """Return the value as the operator's kernel reads it."""
        bits = self.start.spec.activation_bits
        if bits is None or not isinstance(self.learning.get(op.name), Layer):
            return x
        if self.start.spec.mode == "dynamic":
            return on_row_grids(x, bits)
        return on_tensor_grid(x, self.start.grids[op.inputs[0]])

    def policy(self) -> QuantizedPolicy:
        """Return the policy as the integer kernels would run it at present."""
        ops = (self.learning[op.name].operator() if op.name in self.learning else op for op in self.start.ops)
        return QuantizedPolicy.of(self.start, ops, self.start.spec, self.start.grids, self.start.box)
