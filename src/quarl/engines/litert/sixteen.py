"""A static policy as a .tflite file of int16 codes and int8 weights, from its input to its output.

Dense layers are convolutions of one pixel, whose values are [1, 1, 1, n]: LiteRT and TFLite Micro round them alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.engines import int16x8
from quarl.engines.litert.flatbuffer import Model, Operator
from quarl.engines.sums import symmetric
from quarl.policy.graph import QuantizedPolicy, shapes
from quarl.policy.operators import OBSERVATION, Activation, Dense

KERNELS = {"relu": Operator.RELU, "tanh": Operator.TANH, "sigmoid": Operator.LOGISTIC}
ONE_PIXEL = {"padding": schema.Padding.VALID, "strideH": 1, "strideW": 1}


def write(policy: QuantizedPolicy, *, acts: bool = True, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the .tflite file of the policy: int16 codes in, int16 codes of the network's outputs out.

    Args:
        policy: The policy.
        acts: Ignored: the file never contains the action head, which the caller applies.
        metadata: Texts by name to store in the file.

    Raises:
        UnsupportedError: An operator or a weight has no integer kernel.
    """
    model, grids, first = Model(), int16x8.grids(policy), int16x8.entry(policy)
    tensors = {first: model.scaled((1, 1, 1, *shapes(policy)[first]), grids[first].scale)}
    for op in (each for each in policy.ops if each.name in grids and each.name != first):
        model.scope = op.name
        x, source, target = tensors[op.inputs[0]], grids[op.inputs[0]], grids[op.name]
        if isinstance(op, Dense):
            weight, bias = symmetric(op, int16x8.TARGET), int16x8.layer(op, source, target)[0].astype(np.int64)
            constants = (
                model.constant(weight.codes[:, None, None], weight.scale, role="weight"),
                model.constant(bias, weight.scale * np.float32(source.scale), role="bias"),
            )
            output = model.scaled((1, 1, 1, *shapes(policy)[op.name]), target.scale)
            tensors[op.name] = model.add(Operator.CONV_2D, [x, *constants], output, **ONE_PIXEL)
        elif isinstance(op, Activation):
            tensors[op.name] = bent(model, op.kind, x, source.scale)
    return model.to_bytes([tensors[first]], [tensors[policy.output]], (OBSERVATION, "output"), metadata)


def bent(model: Model, kind: str, x: int, scale: float) -> int:
    """Append the operators of an activation function, and return the tensor of its value.

    Args:
        model: File under construction.
        kind: The function.
        x: Tensor that it reads.
        scale: Scale of the tensor, and of the value unless the kernel prescribes it.
    """
    shape = model.shape(x)
    if kind == "silu":
        return model.add(Operator.MUL, [x, bent(model, "sigmoid", x, scale)], model.scaled(shape, scale))
    if kind == "elu":
        # Negative numbers go through a table of int8 codes. For others it has 0, and they are the larger ones.
        narrow, low = (model.scaled(shape, grid.scale, np.int8, grid.zero_point) for grid in int16x8.NARROW)
        model.add(Operator.ELU, [model.add(Operator.QUANTIZE, [x], narrow)], low)
        wide = model.add(Operator.QUANTIZE, [low], model.scaled(shape, scale))
        return model.add(Operator.MAXIMUM, [x, wide], model.scaled(shape, scale))
    return model.add(
        KERNELS[kind], [x], model.scaled(shape, int16x8.UNIT.scale if kind in int16x8.SQUASHING else scale)
    )
