"""Instructions of float32 policies in C on an emulated Cortex-M4 with its FPU: python -m stress.float_c AGENTS ...

What an engineer writes without quantization: dense layers that sum four rows at once, the functions of newlib's libm,
normalizer and head included. The rows stand beside those of `stress.boards` in results/boards. Policies with other
operators, such as LayerNorm, are left out and named. Recurrent policies of tests/networks.py are counted, too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import networks
import results
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import greedy
from quarl.errors import QuarlError
from quarl.export.c import boards
from quarl.export.c.lowering import Lowering
from quarl.policy.graph import Policy, shapes
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Add,
    Concat,
    Dense,
    Flatten,
    Mul,
    Normalize,
    Rounded,
    Scale,
    Slice,
)
from quarl.quant.spec import EXACT, QuantSpec
from stress.boards import MEMORIES, agents, many, others

FUNCTIONS = {
    "relu": "v > 0 ? v : 0",
    "tanh": "tanhf(v)",
    "elu": "v > 0 ? v : expm1f(v)",
    "silu": "v / (1 + expf(-v))",
    "sigmoid": "1 / (1 + expf(-v))",
}
FLOATS = "-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard -mthumb -O2 -fno-math-errno"
LINK = "-mgeneral-regs-only " + boards.LAYOUT.replace("-lgcc", "-Wl,--start-group -lm -lc -lgcc -Wl,--end-group")
"""The harness is compiled in the same call, and runs before the FPU is on."""
boards.BOARDS = {**boards.BOARDS, "c-m4f": boards.BOARDS["c-m4"]._replace(flags=FLOATS, link=LINK)}
KERNELS = """#include "policy.h"
#include <math.h>
int *__errno(void) { static int number; return &number; }
static void dense(int n, int k, const float *w, const float *b, const float *x, float *y) {
    for (int i = 0; i < n; i += 4, w += 4 * k) {
        float s0 = b[i], s1 = b[i + 1], s2 = b[i + 2], s3 = b[i + 3];
        const float *u = w + k, *v = u + k, *t = v + k;
        for (int j = 0; j < k; j++) {
            s0 += w[j] * x[j];
            s1 += u[j] * x[j];
            s2 += v[j] * x[j];
            s3 += t[j] * x[j];
        }
        y[i] = s0, y[i + 1] = s1, y[i + 2] = s2, y[i + 3] = s3;
    }
}
"""
ENTRY = """static __attribute__((noinline)) void net(const float *x, float *y) {{
{body}
    for (int i = 0; i < {raw}; i++) y[i] = {last}[i];
}}
int policy_raw(const uint32_t *x, uint32_t *y) {{
    *(volatile uint32_t *)0xe000ed88 = 0xf00000; /* the FPU is off after a reset */
    __asm__ volatile("dsb\\n\\tisb");
    net((const float *)x, (float *)y);
    return 0;
}}
{action}
"""
CONTINUOUS = """static __attribute__((noinline)) void head(float *y, float *a) {{
    for (int i = 0; i < {actions}; i++) a[i] = {value};
}}
int policy_act(const uint32_t *x, uint32_t *a) {{
    uint32_t y[{raw}];
    policy_raw(x, y);
    head((float *)y, (float *)a);
    return 0;
}}"""
REMEMBERING = CONTINUOUS.replace(
    "policy_act(const uint32_t *x, uint32_t *a) {{\n    uint32_t y[{raw}];",
    """policy_act(policy_state *state, const uint32_t *seen, uint32_t *a) {{
    uint32_t y[{raw}], x[POLICY_OBSERVATION + POLICY_STATE];
    for (int i = 0; i < POLICY_OBSERVATION; i++) x[i] = seen[i];
    for (int i = 0; i < POLICY_STATE; i++) x[POLICY_OBSERVATION + i] = state->numbers[i];""",
).replace(
    "y);\n    head",
    "y);\n    for (int i = 0; i < POLICY_STATE; i++) state->numbers[i] = y[POLICY_RAW - POLICY_STATE + i];\n    head",
)
DISCRETE = """static __attribute__((noinline)) int best(const float *y) {{
    int i, b = 0;
    for (i = 1; i < {raw}; i++) if (y[i] > y[b]) b = i;
    return b;
}}
int policy_act(const uint32_t *x, int32_t *a) {{
    float y[{raw}];
    policy_raw(x, (uint32_t *)y);
    a[0] = {start} + best(y);
    return 0;
}}"""


def array(name: str, values: Array) -> str:
    """Return a constant array of floats, with zeros behind it up to a multiple of four rows."""
    return f"static const float {name}[] = {{{', '.join(f'{float(v)!r}f' for v in values.reshape(-1))}}};\n"


def source(policy: Policy) -> str:
    """Return policy.c in float32; raise QuarlError for operators that it lacks."""
    shape, head, tables, body, names = shapes(policy), policy.head, "", "", {OBSERVATION: "x"}
    if head.segments or head.kind not in ("argmax", "clip", "tanh"):
        raise QuarlError(f"head {head.kind} is not written here")
    for index, op in enumerate(policy.ops):
        size, x, y = int(np.prod(shape[op.name])), names[op.inputs[0]], f"v{index}"
        match op:
            case Dense():
                pad = -size % 4
                tables += array(f"w{index}", np.pad(op.weight, ((0, pad), (0, 0))))
                tables += array(f"b{index}", np.pad(op.bias, (0, pad)))
                body += f"    dense({size}, {op.weight.shape[1]}, w{index}, b{index}, {x}, {y});\n"
            case Activation() if op.kind in FUNCTIONS:
                body += f"    for (int i = 0; i < {size}; i++) {{ float v = {x}[i]; {y}[i] = {FUNCTIONS[op.kind]}; }}\n"
            case Normalize():
                tables += array(f"m{index}", op.mean) + array(f"s{index}", op.inverse_std)
                clip = f"fminf(fmaxf(v, {-op.clip!r}f), {op.clip!r}f)" if np.isfinite(op.clip) else "v"
                value = f"({x}[i] - m{index}[i]) * s{index}[i]"
                body += f"    for (int i = 0; i < {size}; i++) {{ float v = {value}; {y}[i] = {clip}; }}\n"
            case Scale():
                tables += array(f"f{index}", np.broadcast_to(op.factor, shape[op.name]))
                body += f"    for (int i = 0; i < {size}; i++) {y}[i] = {x}[i] * f{index}[i];\n"
            case Flatten() | Rounded():
                y = x
            case Slice():
                y = f"({x} + {op.start})"
            case Concat():
                start = 0
                for part in op.inputs:
                    n = int(np.prod(shape[part]))
                    body += f"    for (int i = 0; i < {n}; i++) {y}[{start} + i] = {names[part]}[i];\n"
                    start += n
            case Mul() | Add():
                sign = "*" if isinstance(op, Mul) else "+"
                body += f"    for (int i = 0; i < {size}; i++) {y}[i] = {x}[i] {sign} {names[op.inputs[1]]}[i];\n"
            case _:
                raise QuarlError(f"{type(op).__name__} is not written here")
        tables += f"static float {y}[{size + 3}];\n" * (y == f"v{index}")
        names[op.name] = y
    raw = int(np.prod(shape[policy.output]))
    if head.is_discrete:
        action = DISCRETE.format(raw=raw, start=head.first)
    else:
        value = "low[i] + (high[i] - low[i]) * 0.5f * (tanhf(y[i]) + 1)"
        if head.kind == "clip":
            value = "fminf(fmaxf(y[i], low[i]), high[i])"
        if np.isfinite([head.low, head.high]).all():
            tables += array("low", head.low) + array("high", head.high)
        else:
            value = "y[i]"
        continuous = REMEMBERING if policy.state.size else CONTINUOUS
        action = continuous.format(actions=head.low.size, value=value, raw=raw)
    return KERNELS + tables + ENTRY.format(body=body, raw=raw, last=y, action=action)


def main() -> None:
    """Count and print an action of each policy, and write the rows."""
    folders, made = [Path(word) for word in sys.argv[1:]], []
    cases = [("agents", *case) for case in agents(folders)]
    cases += [
        ("recurrent", f"recurrent/{kind}-22-16-4", networks.recurrent(kind, 22, 16, 4, first=True)) for kind in MEMORIES
    ]
    for table, name, policy in [*cases, *(("wild", *case) for folder in folders for case in others(folder))]:
        x = networks.observations(policy, 64)
        with tempfile.TemporaryDirectory() as folder:
            try:
                (file := Path(folder) / "policy.c").write_text(source(policy))
                # The interface, and thus the header, is that of the integers.
                like = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
                (Path(folder) / "policy.h").write_text(Lowering(like).program("", "policy").header())
                compiled = boards.load("c-m4f", file, None, edited=like)
                action = compiled.both(x := many(policy, x, 100))[1]
            except QuarlError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            expected = greedy(quantize(policy, EXACT), x, "reference").reshape(len(x), -1)
            row = {"agent": name, "precision": "fp32", "runtime": "c-m4f", "compiler": compiled.version}
            row |= {"flash": compiled.flash(), "stack": compiled.stack, "instructions": compiled.instructions}
            row["largest_error_of_an_action"] = float(np.abs(action - expected).max())
        print(*(f"{key} {value}" for key, value in row.items()), sep=", ", flush=True)
        made.append({"name": f"{name} fp32 c-m4f", "of": table, **row})
    results.write("boards", "python -m stress.float_c AGENTS", floats=made)


if __name__ == "__main__":
    main()
