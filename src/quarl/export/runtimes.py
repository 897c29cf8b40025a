"""Runtimes for exported files: raw observations in, outputs of the file out, one row at a time."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version as installed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from quarl import machine
from quarl.arrays import Array
from quarl.engines.reference import Int16x8
from quarl.errors import MissingPackageError, QuarlError, UnsupportedError, did_you_mean, extras, first_line
from quarl.export.golden import given
from quarl.export.targets import reference_of
from quarl.policy.graph import ActionHead, QuantizedPolicy
from quarl.processes.child import Child
from quarl.processes.inside import Result
from quarl.processes.muted import muted
from quarl.quant.spec import QuantSpec

if TYPE_CHECKING:
    from quarl.export.c.boards import Compiled

ARENA = 2**24
"""Bytes that TFLite Micro may use here; `arena` measures its real usage."""
LIMIT_S = 60.0
"""Seconds for a runtime to load an untrusted file, and for each of its rows."""
Runtime: TypeAlias = "RowByRow | Compiled"
"""A file that is ready to run."""
Row = Callable[[Array], Any]
"""Function from one observation [1, *shape] to the file's output, of any shape."""


class Kind(NamedTuple):
    """Installation and use of a runtime."""

    suffixes: tuple[str, ...]
    """Suffixes of the files that it runs."""
    module: str
    """Module that must be installed, by import name."""
    fix: str
    """Command that installs it."""
    load: str
    """Module and function, with a colon between, that create a Runtime from (name, path)."""
    runs: str = ""
    """Supported subset of such files, if it does not run all."""


@dataclass(frozen=True, slots=True)
class RowByRow:
    """A Runtime based on a function of one row."""

    name: str
    """Name of the runtime, one of RUNTIMES."""
    arithmetic: str
    """Arithmetic of the expected results: "f32-rne", "q31-double", "int16x8" or "qdq"."""
    version: str
    row: Row

    def run(self, observations: Array) -> Array:
        """Return the file's outputs, float32 [B, n], for raw observations [B, *shape], each row on its own.

        Raises QuarlError if the runtime refuses them.
        """
        with _refusals(f"{self.name} does not run the file"):
            return np.stack([np.array(self.row(x[None]), np.float32).reshape(-1) for x in np.asarray(observations)])


def apart(name: str, file: Path, spec: QuantSpec | None = None, *about: object) -> RowByRow:
    """Load a `sound` file into a runtime in a child process of its own, which a hostile file may crash or hang.

    Args:
        name: A key of RUNTIMES.
        file: An exported file, not C.
        spec: Spec of the policy in it; None if unknown.
        about: Further arguments of `load` for C, which are ignored here.

    Returns:
        The file, ready to run; the process ends with it.

    Raises:
        QuarlError: As `load`, and if the process ends or takes longer than LIMIT_S.
    """
    kind_of(name, file, spec)
    child = Child(name, _serve, (name, file, spec), Path(os.devnull), apart=True, linked=True)

    def ask(row: Array | None = None) -> Any:
        with contextlib.suppress(OSError):  # it is dead: `hear` knows why
            child.link.send(row)
        if not child.link.poll(LIMIT_S):
            child.kill()
            raise QuarlError(f"{name} does not run {file.name}: it took more than {LIMIT_S:g} s")
        answer = child.hear()
        if isinstance(answer, Result):
            said = "" if answer.mistake else f"{name} does not run {file.name}: "
            raise (answer.mistake or QuarlError)(f"{said}{answer.error}")
        return answer

    weakref.finalize(ask, child.kill)
    child.start()
    arithmetic, version = ask()
    return RowByRow(name, arithmetic, version, ask)


def _serve(about: tuple[str, Path, QuantSpec | None], link: Connection) -> None:
    """Run a file in a child process: answer each received row with the file's output."""
    name, file, spec = about
    sound(file)
    runtime = load(name, file, spec)
    while True:
        row = link.recv()
        link.send((runtime.arithmetic, runtime.version) if row is None else runtime.run(row)[0])


def sound(file: Path) -> None:
    """Raise QuarlError unless a .tflite or .onnx file is well-formed and complete, with inputs and outputs of a policy.

    LiteRT verifies the flatbuffer of a .tflite file; an .onnx file may not name data in other files.
    """
    content = file.read_bytes()
    with _refusals(f"{file.name} is not a policy"):
        if file.suffix.lower() == ".tflite":
            from ai_edge_litert import schema_py_generated as schema
            from ai_edge_litert.interpreter import Interpreter

            own = Interpreter(model_content=content, num_threads=1)
            count = schema.Model.GetRootAs(content).Subgraphs(0).OperatorsLength()
            inputs, outputs = (
                [each["shape"].tolist() for each in side]
                for side in (own.get_input_details(), own.get_output_details())
            )
        else:
            with extras("a check of .onnx files"):
                import onnx
            model = onnx.load_model_from_string(content)
            inputs, outputs = (
                [[axis.dim_param or axis.dim_value for axis in each.type.tensor_type.shape.dim] for each in side]
                for side in (model.graph.input, model.graph.output)
            )
            count = len(model.graph.node)
            with _refusals(f"{file.name} has data in other files, which are not read"):
                onnx.load_external_data_for_model(model, os.devnull)
    if not count or len(inputs) != max(len(outputs), 1) or inputs[1:] != outputs[1:]:
        raise QuarlError(
            f"{file.name} has {len(inputs)} inputs and {count} operators, and {len(outputs)} outputs; a policy has one "
            "input and one output, and two more of one shape for each part of its state"
        )


def load(
    name: str,
    file: Path,
    spec: QuantSpec | None = None,
    head: ActionHead | None = None,
    edited: QuantizedPolicy | None = None,
) -> Runtime:
    """Load the file into the runtime `name`, in this process; use `apart` for untrusted files.

    Args:
        name: A key of RUNTIMES.
        file: An exported file.
        spec: Spec of the policy in it; None if unknown.
        head: Head of that policy, with which actions that C chooses itself are compared. None trusts them.
        edited: That policy, if C is to be compiled as it is, whatever its origin; None parses it first.

    Returns:
        The file, ready to run.

    Raises:
        QuarlError: If the runtime refuses the file, or is not installed; see also `kind_of`.
    """
    kind = kind_of(name, file, spec)
    module, _, function = kind.load.partition(":")
    loader: Callable[..., Runtime] = getattr(importlib.import_module(module), function)
    with _refusals(f"{name} does not run {file.name}", kind.runs):
        return loader(name, file, head, edited) if ".c" in kind.suffixes else loader(name, file)


def coded(runtime: Runtime, policy: QuantizedPolicy | None, target: str) -> Runtime:
    """Return the runtime of a file of the target; one of integers gets codes, and its codes become actions.

    Args:
        runtime: Runtime that has loaded the file.
        policy: The policy in the file; None leaves the runtime as it is.
        target: Target of the file.

    Raises:
        UnsupportedError: The runtime computes such integers in float.
    """
    if reference_of(target) != "int16x8" or policy is None:
        return runtime
    if not isinstance(runtime, RowByRow) or runtime.name == "openvino":
        raise UnsupportedError(f"{runtime.name} does not compute in int16: run the file in litert or tflm")
    arithmetic, row = Int16x8(policy, 1), runtime.row
    return replace(
        runtime,
        arithmetic="int16x8",
        row=lambda x: given(policy, arithmetic.decoded(np.asarray(row(arithmetic.encoded(x))))),
    )


def kind_of(name: str, file: Path, spec: QuantSpec | None = None) -> Kind:
    """Return the installation and use of the runtime that is to run the file.

    Args:
        name: A key of RUNTIMES.
        file: An exported file.
        spec: Spec of the policy in it; None if unknown.

    Raises:
        MissingPackageError: If the runtime is not installed; names the command that installs it.
        UnsupportedError: If it runs other kinds of files or lacks the precision; names the target that has it.
    """
    if (kind := RUNTIMES.get(name)) is None:
        raise QuarlError(f"unknown runtime {name!r}; choose one of {', '.join(RUNTIMES)}{did_you_mean(name, RUNTIMES)}")
    if file.suffix.lower() not in kind.suffixes:
        raise UnsupportedError(f"{name} runs {' and '.join(kind.suffixes)} files, not {file.name}")
    if spec is not None:
        whole = spec.float_type == "fp32" or (
            spec.float_type is None and spec.mode == "static" and spec.weight_bits == 8
        )
        if name == "tflm" and not whole:
            raise UnsupportedError(
                f"tflm runs fp32 and static int8, not {spec.in_words}: boards run static int2 to int8 --to c"
            )
        if name == "openvino" and spec.mode == "dynamic" and spec.weight_bits and spec.activation_bits:
            raise UnsupportedError(f"openvino runs static integers, not {spec.in_words}: export it with --mode static")
    # openvino's import would otherwise report its use over the network, from a thread that outlives the run
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: it cannot be imported
    try:
        importlib.import_module(kind.module)
    except ImportError:
        raise MissingPackageError(f"runtime {name} is not installed: {kind.fix}") from None
    if name == "openvino" and spec is not None and spec.float_type is None and openvino_saturates():
        raise UnsupportedError(
            "openvino computes other actions on this processor: without VNNI it adds in 16 bits, which saturate; "
            "verify its files on a processor with VNNI, and use litert or ort here"
        )
    return kind


def for_file(file: Path) -> list[str]:
    """Return the names of the runtimes that run files of its suffix, installed or not."""
    return [name for name, kind in RUNTIMES.items() if file.suffix.lower() in kind.suffixes]


def _by_parts(call: Callable[[list[Array]], Iterable[Any]], sizes: Sequence[Any]) -> Row:
    """Return the function of one row, which is an observation followed by the state if a file has several inputs.

    Args:
        call: Function from the file's inputs to its outputs, in order.
        sizes: Numbers of each input.
    """
    if len(sizes) == 1:
        return lambda x: next(iter(call([x])))
    places = [0, *np.cumsum(sizes[:-1], dtype=int).tolist(), None]
    parts = [slice(*ends) for ends in itertools.pairwise(places)]
    return lambda x: np.concatenate([np.ravel(each) for each in call([x[:, part] for part in parts])])


def _stepping(
    write: Callable[[Any, int], Any], invoke: Callable[[], Any], read: Callable[[int], Any], inputs: Any, outputs: Any
) -> Callable[[list[Array]], list[Any]]:
    """Return the function from the inputs of an interpreter to its outputs.

    Args:
        write: Sets an input.
        invoke: Runs the operators.
        read: Returns an output.
        inputs: Numbers by which the interpreter knows its inputs.
        outputs: Numbers of its outputs.
    """

    def call(parts: list[Array]) -> list[Any]:
        for number, part in zip(inputs, parts, strict=True):
            write(part, number)
        invoke()
        return [read(number) for number in outputs]

    return call


def _litert(name: str, file: Path) -> RowByRow:
    from quarl.engines.litert import LiteRT

    engine = LiteRT(file.read_bytes(), 1, measured=True)
    own = engine.interpreter
    (inputs, sizes), (outputs, _) = (
        zip(*((each["index"], each["shape"][-1]) for each in side), strict=True)
        for side in (own.get_input_details(), own.get_output_details())
    )
    call = _stepping(lambda part, number: own.set_tensor(number, part), own.invoke, own.get_tensor, inputs, outputs)
    row = engine.run if len(inputs) == 1 else _by_parts(call, sizes)
    return RowByRow(name, "f32-rne", installed("ai-edge-litert"), row)


def _ort(name: str, file: Path) -> RowByRow:
    import onnxruntime

    from quarl.engines.onnx import on_one_thread

    content = file.read_bytes()
    session = onnxruntime.InferenceSession(content, on_one_thread(), providers=["CPUExecutionProvider"])
    names, sizes = zip(*((each.name, each.shape[-1]) for each in session.get_inputs()), strict=True)
    row = _by_parts(lambda parts: session.run(None, dict(zip(names, parts, strict=True))), sizes)
    return RowByRow(name, _onnx_arithmetic(content), onnxruntime.__version__, row)


def openvino_saturates() -> bool:
    """Return whether OpenVINO's integer kernels add pairs of products in 16 bits here.

    They do so on processors with AVX2 and without VNNI.
    """
    sets = set(machine.instruction_sets())
    return "avx2" in sets and sets.isdisjoint(machine.INT8_DOT)


def _openvino(name: str, file: Path) -> RowByRow:
    """Load a file into OpenVINO with its hint for accuracy.

    Without the hint it computes in bfloat16 if the processor can, and quantizes the inputs of 4-bit weights once more,
    in groups of its own. Both change actions. It turns every file into QuantizeLinear and DequantizeLinear pairs. It
    adds a grid's zero point before it rounds, so a sum within some 1e-5 of a rounding tie may fall to either side.
    """
    import openvino

    compiled = openvino.Core().compile_model(file, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    sizes = [each.partial_shape[-1].get_length() for each in compiled.inputs]
    return RowByRow(name, "qdq", installed(name), _by_parts(lambda parts: compiled(parts).to_tuple(), sizes))


def _tract(name: str, file: Path) -> RowByRow:
    import tract

    model, content = tract.onnx().load(file).into_model(), file.read_bytes()
    sizes, state = [fact.dim(fact.rank() - 1) for fact in model.input_facts()], model.into_runnable().spawn_state()
    row = _by_parts(lambda parts: [each.to_numpy() for each in state.run(parts)], sizes)
    return RowByRow(name, _onnx_arithmetic(content), installed(name), row)


def _tflm(name: str, file: Path) -> RowByRow:
    """Load a file into TFLite Micro's reference kernels, as in its Python package."""
    own, places = _micro(file), range(_num_inputs(file))
    call = _stepping(own.set_input, own.invoke, own.get_output, places, places)
    row = _by_parts(call, [own.get_input_details(place)["shape"][-1] for place in places])
    return RowByRow(name, "q31-double", installed("tflite-micro"), row)


def _num_inputs(file: Path) -> int:
    """Return the number of inputs of a .tflite file, which is also that of its outputs."""
    from ai_edge_litert import schema_py_generated as schema

    return int(schema.Model.GetRootAs(file.read_bytes()).Subgraphs(0).InputsLength())


def arena(file: Path, spec: QuantSpec | None = None) -> int:
    """Return the bytes of the arena in which TFLite Micro plans and runs the .tflite file, to 256 bytes.

    They are measured in its Python package, with 64-bit pointers: boards need less. Raises QuarlError as `load`.
    """
    load("tflm", file, spec)
    with muted((2,)) as said:
        interpreter = _micro(file)
        for place in range(_num_inputs(file)):
            about = interpreter.get_input_details(place)
            interpreter.set_input(np.zeros(about["shape"], about["dtype"]), place)
        interpreter.invoke()
        interpreter.print_allocations()
        size = int(said().split("Arena allocation total ")[1].split()[0])
        while True:  # planning takes memory, too, for a moment
            with contextlib.suppress(RuntimeError):
                _micro(file, size)
                return size
            size += 256


def _micro(file: Path, arena_size: int = ARENA) -> Any:
    from tflite_micro.python.tflite_micro import runtime

    return runtime.Interpreter.from_bytes(file.read_bytes(), arena_size=arena_size)


RUNTIMES: Mapping[str, Kind] = {
    "litert": Kind((".tflite",), "ai_edge_litert", "pip install 'ai-edge-litert>=2.3,<3'", f"{__name__}:_litert"),
    "ort": Kind((".onnx",), "onnxruntime", "pip install 'quarl[onnx]'", f"{__name__}:_ort"),
    "openvino": Kind((".tflite", ".onnx"), "openvino", "pip install 'openvino>=2026.4,<2027'", f"{__name__}:_openvino"),
    "tract": Kind((".onnx",), "tract", "pip install 'tract>=0.23.9,<0.24'", f"{__name__}:_tract"),
    "tflm": Kind(
        (".tflite",),
        "tflite_micro",
        "pip install tflite-micro",
        f"{__name__}:_tflm",
        "it runs fp32 and static int8: export to c for 4 bits, or with --mode static",
    ),
    **{
        name: Kind((".c",), "quarl.export.c.boards", "", "quarl.export.c.boards:load")
        for name in ("c", "c-aarch64", "c-m4", "c-m0")
    },
}
"""Runtimes of exported files by name."""


def _onnx_arithmetic(content: bytes) -> str:
    """Return the arithmetic of a file; only files of the target onnx-qdq widen codes to real numbers."""
    return "qdq" if b"DequantizeLinear" in content else "f32-rne"


@contextlib.contextmanager
def _refusals(what: str, runs: str = "") -> Iterator[None]:
    """Turn a runtime's exception inside the block into one line; its output to stderr is hidden."""
    with muted((2,)) as said:
        try:
            yield
        except QuarlError:
            raise
        except Exception as error:  # other libraries raise any kind
            # TFLite Micro raises a general error and prints the cause; others print more than necessary.
            printed = said().strip().splitlines() if type(error) is RuntimeError else []
            reason = printed[0].strip() if printed else first_line(error)
            raise QuarlError("; ".join(filter(None, (f"{what}: {reason}", runs)))) from None
