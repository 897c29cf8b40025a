"""Page beside an exported file about calling it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quarl.export.contract import memory
from quarl.policy.inputs import KINDS
from quarl.readers.normalizer import outside

CALLS = {
    "tflite": """from ai_edge_litert.interpreter import Interpreter
policy = Interpreter("policy.tflite", num_threads=1)
policy.allocate_tensors()
policy.set_tensor(policy.get_input_details()[0]["index"], observation[None])
policy.invoke()
output = policy.get_tensor(policy.get_output_details()[0]["index"])[0]""",
    "tflite-int16x8": """import json, pathlib
import numpy
from ai_edge_litert.interpreter import Interpreter
io = json.loads(pathlib.Path("contract.json").read_text())["io"]
policy = Interpreter("policy.tflite", num_threads=1)
policy.allocate_tensors()
# x is the observation after the steps of io["input"]["before"]
codes = numpy.clip(numpy.rint(x / numpy.float32(io["input"]["scale"])), -32768, 32767).astype(numpy.int16)
policy.set_tensor(policy.get_input_details()[0]["index"], codes[None, None, None])
policy.invoke()
output = policy.get_tensor(policy.get_output_details()[0]["index"])[0, 0, 0] * io["output"]["scale"]""",
    "onnx": """import onnxruntime
policy = onnxruntime.InferenceSession("policy.onnx")
output = policy.run(None, {"observation": observation[None]})[0][0]""",
    "tflite with a memory": """import json, pathlib
import numpy
from ai_edge_litert.interpreter import Interpreter
policy = Interpreter("policy.tflite", num_threads=1)
policy.allocate_tensors()
first, *parts = policy.get_input_details()
result, *following = policy.get_output_details()
start = [numpy.full((1, part["size"]), part["start"], numpy.float32)
         for part in json.loads(pathlib.Path("contract.json").read_text())["state"]]
state = start  # at the start of each episode
policy.set_tensor(first["index"], observation[None])
for part, numbers in zip(parts, state):
    policy.set_tensor(part["index"], numbers)
policy.invoke()
output = policy.get_tensor(result["index"])[0]
state = [policy.get_tensor(part["index"]) for part in following]""",
    "onnx with a memory": """import json, pathlib
import numpy, onnxruntime
policy = onnxruntime.InferenceSession("policy.onnx")
start = {part["name"]: numpy.full((1, part["size"]), part["start"], numpy.float32)
         for part in json.loads(pathlib.Path("contract.json").read_text())["state"]}
state = start  # at the start of each episode
(output,), *following = policy.run(None, {"observation": observation[None], **state})
state = dict(zip(start, following))""",
    "c": """#include "NAME.h"
{x} observation[MACRO_OBSERVATION];
{a} action[MACRO_ACTION];
switch (NAME_{act}(observation, action)) {
case -1: stop(); break; /* NaN or infinity, and no action */
case 1: count++; break; /* an action, but the observation is outside the calibrated box */
}
/* cc -std=c99 -O3 -c NAME.c; NAME_selftest() gives 0, or the number of the first vector that differs */""",
}
RESET = """static NAME_state state;
NAME_reset(&state); /* before the first step of each episode */
switch"""
CALLS["c with a memory"] = CALLS["c"].replace("switch", RESET).replace("(obs", "(&state, obs")

LOOP = """
`NAME_control.h` is a control loop: it limits actions, holds the last one if an observation is missing or holds NaN,
applies `safe` after a timeout or a failed self-test, and kicks the watchdog. Define its four hooks.

```{}```
"""
PACKAGES = {
    "cmake": """sh
cmake -S . -B build && cmake --build build
ctest --test-dir build # replays the golden observations; add_subdirectory gives the library NAME
""",
    "platformio": """sh
pio run # after filling in the hooks in NAME_arduino.cpp, and platform and board in platformio.ini
""",
    "esp-idf": """cmake
# CMakeLists.txt of a project whose folder "main" is this one; fill in the hooks in NAME_esp_idf.cpp
cmake_minimum_required(VERSION 3.16)
include($ENV{IDF_PATH}/tools/cmake/project.cmake)
project(NAME)
""",
}
"""Building of C, by package."""
MICRO = """
TFLite Micro plans and runs it in an arena of {ram} bytes here, with 64-bit pointers; boards need less. These lines were
not compiled here:

```cpp
extern const unsigned char policy_tflite[]; // xxd -i policy.tflite, aligned to 16 bytes
alignas(16) static uint8_t arena[{ram}];
static tflite::MicroMutableOpResolver<{count}> operators;
{adds}
static tflite::MicroInterpreter policy(tflite::GetModel(policy_tflite), operators, arena, sizeof arena);
policy.AllocateTensors();
```
"""
"""Call in TFLite Micro, with every operator of the file."""
MISRA = """
`NAME.c` has no heap, recursion, floats, unions, goto or arrays of variable length. It deviates from MISRA C:2012 in
these rules, found by reading and not by a checker. Dir 4.6, `int` for counts and results. Dir 4.9, macros with
arguments. Rule 1.2, intrinsics and `asm` of gcc and clang; other compilers get C99. Rule 10.1, shifts of negative
numbers, which the file asserts to be arithmetic. Rule 12.3, commas. Rules 13.3 and 13.4, increments and assignments
in expressions. Rule 15.5, several returns. Rule 15.6, bodies without braces. Rule 18.4, sums of pointers and
numbers. `strings` shows `NAME_id` in a firmware: name, version, and the sha256 of weights and grids in
`contract.json`, of which it has the first 16 digits each.
"""
"""Note in the folder of C."""
BOX = """
Calibration saw the numbers from `low` to `high` in `observation.box` of `contract.json`. Outside this box the grids of
static mode may saturate."""


def readme(contract: Mapping[str, Any], file: str) -> str:
    """Return the README.md of a folder that `quarl export` writes."""
    name = contract["name"]
    observation, action, source = contract["observation"], contract["action"], contract["source"]
    kind = "c" if contract["target"] == "c" else file.rpartition(".")[2]
    shape = " x ".join(map(str, observation["shape"]))
    last = [{"name": ""}, *(each for each in observation["numbers"] if each.get("made_by", "") not in ("", *KINDS))][-1]
    made = f"; number {last['place']} is {last['name']} (made by {last['made_by']})" if last["name"] else ""
    where = contract["environment"]["id"] or "no environment"
    # One entry for each runtime that was compared with the golden vectors.
    held = ", ".join(
        f"{each['runtime']} {each['version']} ({each['detail'] or each['result']})" for each in contract["verified"]
    )
    gives = (
        f"`{file}` gives {action['num_outputs']} {'float32 ' * (contract['io'] == 'float')}numbers: {action['meaning']}"
    )
    carries = memory(contract)
    if kind == "c":
        gives = (
            f"`{name}_act` gives the action, `{name}_raw` the network's outputs; numbers are the bits of float32, "
            "except bytes and discrete actions"
        )
        carries = carries and (
            f"it has a memory in the caller's `{name}_state`, which `{name}_reset` sets at the start of an episode; "
            f"`{name}_raw` reads the state after the observation and writes the next state after the outputs"
        )
    takes = f"one raw observation, {observation['dtype']} [{shape}]", "Do not\nnormalize, scale or clip it first"
    if contract["io"] != "float":
        takes = "int16 codes of one observation", "`io` of\n`contract.json` says how to compute them, [1, 1, n]"
        if tables := contract["io"]["int8_tables"]:
            gives += f". Negative numbers of {', '.join(tables)} (ELU) go through a table of int8 codes"
    x, a = (
        "uint8_t" if observation["dtype"] == "uint8" else "float",
        "int32_t" if action["kind"] in ("argmax", "binary") else "float",
    )
    calls = f"{kind} with a memory" if carries else contract["target"]
    call = CALLS.get(calls, CALLS[kind]).replace("{x}", x).replace("{a}", a).replace("NAME", name)
    call = call.replace("{act}", "act_float" if "float" in (x, a) else "act").replace("MACRO", name.upper())
    package, box = contract["package"], BOX if observation["box"] else ""
    loop = LOOP.format(PACKAGES[package]).replace("NAME", name) if package else ""
    if operators := contract["footprint"].get("operators"):
        adds = "\n".join(
            f"operators.Add{each.title().replace('_', '').replace('Padv2', 'PadV2')}();" for each in operators
        )
        loop = MICRO.format(ram=contract["footprint"]["ram"], count=len(operators), adds=adds)
    due = f" An action is due every {contract['control_period']:g} s." if contract["control_period"] else ""
    return f"""# {source["algo"] or "A policy"} on {where}, {contract["precision"]} {contract["mode"]}

`{file}` takes {takes[0]}, {observation["layout"]}{made}. {takes[1]}.
Its numbers are named in `contract.json`. NaN: {observation["nan"]}.{due}{box}{_names(contract)}

{"; ".join(filter(None, (gives, carries, outside(contract["environment"]["wrappers"]))))}.

```{"c" if kind == "c" else "python"}
{call}
```
{loop}{MISRA.replace("NAME", name) if kind == "c" else ""}
Held to `golden.npz` here: {held or "no runtime"}.
`quarl verify .` repeats that, checks the sha256 of every file and plays the policy.
"""


def _names(contract: Mapping[str, Any]) -> str:
    """Return a table of the names and units that came from a file; blank without one."""
    rows = [
        "| {} {} | {} | {} |".format(key, each["place"], *(each[k].replace("|", "\\|") for k in ("name", "unit")))
        for key in ("observation", "action")
        for each in contract[key]["numbers"]
        if "unit" in each
    ]
    return "\n".join(["", "", "| number | name | unit |", "|---|---|---|", *rows]) if rows else ""
