"""The contents of a TorchScript archive as data: functions as syntax trees, objects of its pickles, tensors."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, first_line
from quarl.inert.objects import Inert, Malformed
from quarl.inert.pickle import interpret
from quarl.inert.reading_budget import current
from quarl.inert.zip import Opened
from quarl.readers.torch_file import NAMES, dense, is_tensor

BYTES_PER_VALUE = 5
"""Bytes of code that count as one value of a file; the code of a policy with an LSTM has 30,000 bytes."""
MAX_BRACKETS, MAX_LINE = 60, 2**14
"""Largest depth of brackets, and length of a line of code, which TorchScript's writer breaks at 80 characters."""
_ALLOWED = re.compile(rf"{NAMES.pattern}|__torch__(\.\w+)* \w+|torch\.jit\._pickle \w+")


class Archive:
    """A TorchScript file. Nothing in it is compiled or called."""

    def __init__(self, file: Opened) -> None:
        self.where, self.members = str(file.path), file.unpacked(*file.names)
        self.root = next(name for name in self.members if name.endswith("/constants.pkl")).removesuffix("constants.pkl")
        self.globals: dict[str, Any] = {}
        """Functions and constants by dotted name; a method has the name of its class in front."""
        self.files: dict[ast.AST, str] = {}
        """File of each part of the code."""
        self.written: set[str] = set()
        """Attributes that a function may write to."""
        for file_name, text in self.folder("code").items():
            if file_name.endswith(".py"):
                self._parse(file_name, text)
        self.module = self._unpickled("data.pkl")
        self.globals |= {f"CONSTANTS.c{n}": value for n, value in enumerate(self._unpickled("constants.pkl"))}
        self.storages = {folder: self.folder(folder) for folder in ("data", "constants")}
        self.names: dict[int, str] = {}
        """Dotted names of objects and arrays, by their id."""
        self.arrays: dict[int, Array] = {}
        """Arrays by the id of the object that describes them."""

    def folder(self, name: str) -> dict[str, bytes]:
        """Return the members of a folder, by their path in it."""
        start = f"{self.root}{name}/"
        return {path.removeprefix(start): data for path, data in self.members.items() if path.startswith(start)}

    def place(self, node: ast.AST) -> str:
        """Return file and line of a part of the code."""
        return f"{self.where}: {self.files.get(node, 'data.pkl')}, line {getattr(node, 'lineno', 1)}"

    def _unpickled(self, name: str) -> Any:
        try:
            return interpret(self.members[f"{self.root}{name}"], self.where, allowed=_ALLOWED)
        except (KeyError, Malformed) as error:
            raise QuarlError(f"{self.where} is not whole TorchScript ({name}: {error}); export it again") from None

    def _parse(self, file: str, text: bytes) -> None:
        """Find the functions in one file of code."""
        current(self.where).parse(len(text) // BYTES_PER_VALUE)
        letters = np.frombuffer(text, np.uint8)
        opening, closing = (np.isin(letters, list(brackets)).astype(np.int64) for brackets in (b"([{", b")]}"))
        lines = np.diff(np.flatnonzero(letters == ord("\n")), prepend=-1, append=letters.size)
        try:
            # Check what would make the parser recurse.
            if np.cumsum(opening - closing).max(initial=0) > MAX_BRACKETS or lines.max() > MAX_LINE:
                raise ValueError("its expressions are too deep or too long")
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise QuarlError(f"{self.where}: {file} is not TorchScript: {first_line(error)[:80]}") from None
        module = file.removesuffix(".py").replace("/", ".")
        self.files.update(dict.fromkeys(ast.walk(tree), file))
        for owner in tree.body:
            prefix = f"{module}.{owner.name}." if isinstance(owner, ast.ClassDef) else f"{module}."
            for node in owner.body if isinstance(owner, ast.ClassDef) else [owner]:
                if isinstance(node, ast.FunctionDef) and self.globals.setdefault(prefix + node.name, node) is not node:
                    raise QuarlError(f"{self.place(node)}: a second function is named {node.name:.60}")
                self._find_writes(node)

    def _find_writes(self, function: ast.stmt) -> None:
        """Add the attributes to which a function assigns, or of which an operator overwrites the numbers."""
        made: dict[str, ast.expr] = {}
        places: list[ast.expr] = []
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    made[name] = value
                case ast.Assign(targets=[ast.Attribute() as target]):
                    places.append(target)
                case ast.Call(func=ast.Attribute(attr=name), args=[place, *_]) if name[-2:-1] != "_" == name[-1]:
                    places.append(place)
        while places:  # follow views and local names to the attribute
            match places.pop():
                case ast.Name(id=name) if name in made:
                    places.append(made.pop(name))
                case ast.Call(args=[place, *_]) | ast.Subscript(value=place):
                    places.append(place)
                case ast.Attribute(attr=name):
                    self.written.add(name)

    def value(self, value: Any, name: str, folder: str = "data") -> Any:
        """Return a value of a pickle as the evaluator reads it: tensors as arrays, other values as they are.

        Args:
            value: The value.
            name: Its dotted name.
            folder: Folder of the numbers of tensors.
        """
        if isinstance(value, Inert) and value.name == "build_tensorlist":
            return [self.value(each, name, folder) for each in value.args[0]]
        if not is_tensor(value):
            self.names.setdefault(id(value), name)
            return value
        if id(value) not in self.arrays:
            array = dense(value, self.storages[folder], f"{self.where}: {name[:80]!r}", halves=False)
            self.arrays[id(value)], self.names[id(array)] = array, name
        return self.arrays[id(value)]
