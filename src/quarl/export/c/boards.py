"""policy.c compiled and run: on this machine, as 64-bit Arm code in qemu, and on a bare Cortex-M in qemu."""

from __future__ import annotations

import functools
import importlib.resources
import os
import re
import select
import shutil
import subprocess
import time
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.errors import MissingPackageError, QuarlError, first_line
from quarl.export.c.lowering import Lowering
from quarl.export.c.program import Program, check
from quarl.export.c.weight_words import KERNELS
from quarl.files import temporary_folder
from quarl.policy.graph import ActionHead, QuantizedPolicy

STRICT = "-std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wvla -Werror"
BARE = "-mthumb -O2 -fno-tree-loop-distribute-patterns"
LAYOUT = "-nostdlib -Wl,--section-start=.vectors=0,-Ttext=0x40,-Tdata=0x20000000,-Tbss=0x20000000,-e,0x40 -lgcc"
"""Memory of the machine mps2-an386: code from 0 on, data from 0x20000000 on, the stack from 4 MB above that."""
QEMU = "qemu-system-arm -M mps2-an386 -display none -monitor none -serial none -icount shift=0"
QEMU += " -semihosting-config enable=on,target=native -kernel ./policy"
INSTRUCTIONS = 40
"""Instructions per tick of that machine's clock: 25 MHz, with an instruction per nanosecond."""
LIBRARY = {"ldivmod": 96, "": 32}
"""Bytes of the stack of libgcc's 64-bit division (72 and 96 on armv6-m, 48 on a Cortex-M4), and of its others."""
LONGEST = 600.0
"""Seconds for a compiler, and for a program per observation."""


class Board(NamedTuple):
    """Compilation of C and execution of the program, as words with blanks between."""

    compiler: str
    flags: str
    link: str
    run: str
    packages: str
    """Debian packages."""


ARM, ARM64 = "gcc-arm-none-eabi qemu-system-arm", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
BOARDS: Mapping[str, Board] = {
    "c": Board("gcc", "-O3", "", "./policy", "gcc libc6-dev"),
    "c-aarch64": Board("aarch64-linux-gnu-gcc", "-O3", "-static", "qemu-aarch64 ./policy", ARM64),
    "c-m4": Board("arm-none-eabi-gcc", f"-mcpu=cortex-m4 -mfloat-abi=soft {BARE}", LAYOUT, QEMU, ARM),
    "c-m0": Board("arm-none-eabi-gcc", f"-mcpu=cortex-m0plus {BARE}", LAYOUT, QEMU, ARM),
}


@dataclass(slots=True, weakref_slot=True)
class Compiled:
    """A Runtime of a policy.c."""

    name: str
    board: Board
    version: str
    program: Program
    folder: Path
    process: subprocess.Popen[bytes]
    pipes: tuple[int, int]
    """Pipes into the program and out of it."""
    head: ActionHead | None
    """Head of the policy; None if unknown."""
    arithmetic: str = "f32-rne"
    returned: Array = field(default_factory=lambda: np.zeros(0, np.int32), init=False)
    """Results of policy_act in the last run, int32 [B]: 1 outside the calibrated box, -1 for NaN and infinity."""
    stack: int = field(default=0, init=False)
    """Bytes of the stack in the last run, and mean instructions of an action; 0 except on a bare Cortex-M."""
    instructions: int = field(default=0, init=False)

    def run(self, observations: Array) -> Array:
        """Return float32 [B, n] for raw observations [B, *shape]: scores of discrete actions, otherwise actions.

        With a memory, the state follows observations, and the next state follows both.

        Raises:
            QuarlError: If policy_act chooses discrete actions other than the head's of the scores.
        """
        raw, action = self.both(observations)
        if self.program.a != "int32_t":
            return np.concatenate([action, raw[:, raw.shape[1] - self.program.state :]], axis=1)
        wanted = action if self.head is None else self.head(raw).reshape(len(raw), -1)
        if not np.array_equal(wanted, action):
            at = int((wanted != action).any(axis=1).argmax())
            raise QuarlError(f"policy_act gives {action[at]} in place of {wanted[at]} for observation {at}")
        return raw

    def both(self, observations: Array) -> tuple[Array, Array]:
        """Return the network's raw outputs, float32 [B, n], and the actions, int32 or float32 [B, m]."""
        program, dtype = self.program, np.uint8 if self.program.x == "uint8_t" else np.float32
        width = program.raw + program.action + 3
        rows = np.asarray(observations).reshape(len(observations), -1).astype(dtype)
        if rows.shape[1] != program.observation:
            raise QuarlError(f"policy.c reads {program.observation:,} numbers, an observation has {rows.shape[1]:,}")
        answers = b"".join(self._answer(row.tobytes(), 4 * width) for row in rows)
        words = np.frombuffer(answers, np.uint32).reshape(len(rows), width)
        if len(rows):
            self.stack = int(words[:, -1].max())
            self.instructions = int(words[:, -2].mean() * INSTRUCTIONS)
        self.returned = words[:, -3].view(np.int32)
        raw, action = words[:, : program.raw], words[:, program.raw : -3]
        return raw.view(np.float32), action.view(np.int32 if program.a == "int32_t" else np.float32)

    def _answer(self, question: bytes, size: int) -> bytes:
        """Return the program's output for an input; raise QuarlError if it has ended."""
        (in_, out), answer, ends = self.pipes, b"", time.monotonic() + LONGEST
        while question or len(answer) < size:
            readable, writable, _ = select.select([out], [in_] if question else [], [], 1.0)
            if writable:
                question = question[os.write(in_, question[: select.PIPE_BUF]) :]
            if readable:
                answer += os.read(out, size - len(answer))
            elif not writable and (self.process.poll() is not None or time.monotonic() > ends):
                raise QuarlError(f"policy.c ended, or took more than {LONGEST:g} s for an observation")
        return answer

    def flash(self) -> int:
        """Return the bytes of code and tables.

        On a Cortex-M they include the compiler's library functions that are needed.
        """
        board, where, file = self.board, self.folder, "policy.o"
        if board.link == LAYOUT:
            file = "alone"
            ran(
                f"{board.compiler} {board.flags} policy.o -nostdlib -lgcc -Wl,-e,{self.program.name}_act -o {file}",
                where,
            )
        size = board.compiler.removesuffix("gcc") + "size"
        return int(ran(f"{size} {file}", where).splitlines()[1].split()[0])

    def deepest(self) -> int:
        """Return the bytes of the stack that an action takes at most on a Cortex-M, by the compiler's call graph.

        A watermark of observations can miss the path near a tie. The deepest call is NAME_act_float where the header
        has it, which is compiled apart, as in the application.
        """
        board, where = self.board, self.folder
        flags = f"{STRICT} {board.flags} -fcallgraph-info=su -Dinline=__attribute__((used)) -x c -c -o"
        for file in ("graph.o policy.c", f"called.o {self.program.name}.h"):
            ran(f"{board.compiler} {flags} {file}", where)
        graph = (where / "graph.ci").read_text() + (where / "called.ci").read_text()
        frames = {name: int(size) for name, size in NODE.findall(graph)}
        called: dict[str, set[str]] = {name: set() for name in frames}
        for source, target in EDGE.findall(graph):
            # Kernels call the sums of four rows through a pointer, unless the compiler knows which.
            called[source] |= {name for name in frames if SUMS.match(name)} if target == "__indirect_call" else {target}

        @functools.cache
        def below(name: str) -> int:
            return frames.get(name, 0) + max(map(below, called.get(name, ())), default=0)

        library = ran(f"{board.compiler.removesuffix('gcc')}nm -u graph.o", where)
        return max(map(below, frames)) + max(size for word, size in LIBRARY.items() if word in library)


NODE = re.compile(r'node: \{ title: "([^"]+)" label: "[^"]*\\n(\d+) bytes')
EDGE = re.compile(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"')
SUMS = re.compile(rf"policy\.c:({'|'.join(KERNELS)})\b")


def load(
    name: str,
    file: Path,
    head: ActionHead | None = None,
    edited: QuantizedPolicy | None = None,
    small: bool = False,
) -> Compiled:
    """Compile the file for the runtime `name`.

    The compiler only gets kernels of this package with the file's tables and calls, unless the file is `edited`.

    Args:
        name: A key of BOARDS.
        file: policy.c.
        head: Head of the policy; None if unknown.
        edited: The policy, if policy.c and the policy.h beside it are to be compiled as they are.
        small: Compile a bare board's code with -Os in place of -O2.

    Returns:
        The program, started.

    Raises:
        QuarlError: If the file is neither edited nor an output of `write`, or does not compile.
        MissingPackageError: If tools are missing.
    """
    board = BOARDS[name]
    if small:
        board = board._replace(flags=board.flags.replace("-O2", "-Os"))
    if any(shutil.which(tool) is None for tool in {board.compiler, board.run.split()[0]} - {"./policy"}):
        raise MissingPackageError(f"runtime {name} is not installed: apt install {board.packages}")
    try:
        program = (
            Lowering(edited).program("", file.stem) if edited else check(file.read_text("ascii", errors="replace"))
        )
    except QuarlError as error:
        raise QuarlError(f"{name} does not run {file.name}: {error}") from None
    # Compile the parsed program, or the edited file as it is, with a harness that answers through pipes.
    harness = importlib.resources.files(__package__).joinpath("harness.c").read_text()
    harness = harness.replace("policy", program.name).replace("POLICY", macro := program.name.upper())
    with ExitStack() as stack:
        where = stack.enter_context(temporary_folder())
        for path, text in (
            (f"{program.name}.h", program.header()),
            ("policy.c", program.source()),
            ("harness.c", harness),
        ):
            (where / path).write_text(text)
        strict, source = ("-std=c99", str(file.absolute())) if edited else (STRICT, "policy.c")
        types = f"-D{macro}_NUMBER={program.x} -D{macro}_RESULT={program.a}"
        ran(f"{board.compiler} {strict} {board.flags} -c -o policy.o", where, source)
        ran(f"{board.compiler} {board.flags} {types} harness.c policy.o {board.link} -o policy", where)
        # Opening both ends for reading and writing does not wait for the program.
        for name_of_pipe in ("in", "out"):
            os.mkfifo(where / name_of_pipe)
        pipes = os.open(where / "in", os.O_RDWR), os.open(where / "out", os.O_RDWR)
        for pipe in pipes:
            stack.callback(os.close, pipe)
        process = stack.enter_context(
            subprocess.Popen(board.run.split(), cwd=where, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(process.kill)
        version = "gcc " + ran(f"{board.compiler} -dumpfullversion", where).strip()
        compiled = Compiled(name, board, version, program, where, process, pipes, head)
        weakref.finalize(compiled, stack.pop_all().close)
    return compiled


def ran(words: str, where: Path, *paths: str, limit_s: float | None = LONGEST) -> str:
    """Return the command's output.

    Args:
        words: The command, with blanks between its words.
        where: Folder to run it in.
        *paths: Further words.
        limit_s: Limit of its time in seconds; None is none.

    Raises:
        QuarlError: It fails, with the first line of its errors, or takes longer.
    """
    command = [*words.split(), *paths]
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise QuarlError(f"{command[0]} took more than {limit_s:g} s") from None
    if done.returncode:
        reason = first_line(RuntimeError(done.stderr.strip() or f"exit code {done.returncode}"))
        raise QuarlError(f"{command[0]} does not compile policy.c: {reason}")
    return done.stdout
