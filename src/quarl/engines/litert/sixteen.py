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
        output = tensors[op.name] = model.scaled((1, 1, 1, *shapes(policy)[op.name]), target.scale)
        if isinstance(op, Dense):
            weight, bias = symmetric(op, int16x8.TARGET), int16x8.layer(op, source, target)[0].astype(np.int64)
            constants = (
                model.constant(weight.codes[:, None, None], weight.scale, role="weight"),
                model.constant(bias, weight.scale * np.float32(source.scale), role="bias"),
            )
            model.add(Operator.CONV_2D, [x, *constants], output, **ONE_PIXEL)
        elif isinstance(op, Activation) and op.kind == "silu":
            gate = model.add(Operator.LOGISTIC, [x], model.scaled(model.shape(x), int16x8.UNIT.scale))
            model.add(Operator.MUL, [x, gate], output)
        elif isinstance(op, Activation):
            model.add(KERNELS[op.kind], [x], output)
    return model.to_bytes(tensors[first], tensors[policy.output], (OBSERVATION, "output"), metadata)
