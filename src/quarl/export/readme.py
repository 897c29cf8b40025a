"""Page beside an exported file about calling it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quarl.policy.inputs import KINDS
from quarl.readers.normalizer import outside

CALLS = {
    "tflite": """from ai_edge_litert.interpreter import Interpreter
policy = Interpreter("policy.tflite", num_threads=1)
policy.allocate_tensors()
policy.set_tensor(policy.get_input_details()[0]["index"], observation[None])
policy.invoke()
output = policy.get_tensor(policy.get_output_details()[0]["index"])[0]""",
    "onnx": """import onnxruntime
policy = onnxruntime.InferenceSession("policy.onnx")
output = policy.run(None, {"observation": observation[None]})[0][0]""",
    "c": """#include "NAME.h"
{x} observation[MACRO_OBSERVATION];
if (NAME_{act}(observation, action)) /* not 0: NaN or infinity, and no action */
    stop();
/* cc -std=c99 -O3 -c NAME.c; NAME_selftest() gives 0, or the number of the first vector that differs */""",
}


def readme(contract: Mapping[str, Any], file: str) -> str:
    """Return the README.md of a folder that `quarl export` writes."""
    name = contract["name"]
    observation, action, source = contract["observation"], contract["action"], contract["source"]
    kind = "c" if contract["target"] == "c" else file.rpartition(".")[2]
    shape = " x ".join(map(str, observation["shape"]))
    last = [{"name": ""}, *(each for each in observation["numbers"] if each["made_by"] not in KINDS)][-1]
    made = f"; number {last['place']} is {last['name']} (made by {last['made_by']})" if last["name"] else ""
    where = contract["environment"]["id"] or "no environment"
    # One entry for each runtime that was compared with the golden vectors.
    held = ", ".join(
        f"{each['runtime']} {each['version']} ({each['detail'] or each['result']})" for each in contract["verified"]
    )
    gives = f"`{file}` gives {action['num_outputs']} float32 numbers: {action['meaning']}"
    if kind == "c":
        gives = f"`{name}_act` gives the action, `{name}_raw` the network's outputs; numbers are the bits of float32"
    x, act = ("uint8_t", "act") if observation["dtype"] == "uint8" else ("float", "act_float")
    call = CALLS[kind].replace("{x}", x).replace("{act}", act).replace("NAME", name).replace("MACRO", name.upper())
    return f"""# {source["algo"] or "A policy"} on {where}, {contract["precision"]} {contract["mode"]}

`{file}` takes one raw observation, {observation["dtype"]} [{shape}], {observation["layout"]}{made}. Do not
normalize, scale or clip it first. Its numbers are named in `contract.json`. NaN: {observation["nan"]}.

{"; ".join(filter(None, (gives, outside(contract["environment"]["wrappers"]))))}.

```{"c" if kind == "c" else "python"}
{call}
```

Held to `golden.npz` here: {held or "no runtime"}.
`quarl verify .` repeats that, checks the sha256 of every file and plays the policy.
"""
