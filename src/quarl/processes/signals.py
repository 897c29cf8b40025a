"""Ends of a process: the first Ctrl-C, SIGTERM or SIGHUP ends a run in good order, a later one kills it.

A finished process exits even if an environment has left threads behind.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

SIGHUP = getattr(signal, "SIGHUP", None)
"""Signal for a closed terminal; Windows has none."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, *((SIGHUP,) if SIGHUP else ()))
"""Signals that a terminal, a service manager or a cluster's scheduler sends to every process of a run."""
SIGNALLED = 128
"""Base of exit codes for signals."""
AGAIN_S = 3.0
"""Seconds after the first signal in which further ones count as the same request.

`timeout`, npm and service managers forward signals that the terminal has sent already, and send two kinds at once.
"""
GRACE_S = 2.0
"""Seconds for threads that are about to end."""
ONCE_MORE = f"repeat the signal after {AGAIN_S:g} s to exit at once"


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt from the block after Ctrl-C, even if another exception has replaced it.

    Libraries that are being imported turn it into an ImportError.
    """
    handle = _CtrlC()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Exception:
        if handle.came:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


class _CtrlC:
    """The handler of `ctrl_c`."""

    came, deaf_until = False, -math.inf

    def __call__(self, number: int, frame: object) -> None:
        if (now := time.monotonic()) >= self.deaf_until:
            self.came, self.deaf_until = True, now + AGAIN_S
            raise KeyboardInterrupt


class Interrupted(BaseException):
    """An interruption of work that may be interrupted; no library catches it by accident."""


class Interrupts:
    """Signal handlers during a run; `number` is the first signal received."""

    def __init__(self, kill: Callable[[], None], said: str = "") -> None:
        """Prepare the handlers.

        kill: called by a second signal before the process exits. said: line for stderr at the first one.
        """
        self.number: int | None = None
        self._kill, self._said, self._came = kill, said, 0.0
        self._breakable = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            # respect nohup
            if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            if isinstance(handler, _CtrlC) and self.number is not None:
                handler.deaf_until = self._came + AGAIN_S
            signal.signal(number, handler)

    def attempt(self, work: Callable[[], None]) -> bool:
        """Do `work`; return False if a first signal came before it or interrupted it."""
        try:
            self._breakable = True
            try:
                if self.number is None:
                    work()
                    return True
            finally:
                self._breakable = False
        except Interrupted:
            pass
        return False

    def _handle(self, number: int, frame: object) -> None:
        if self.number is None:
            self.number, self._came = number, time.monotonic()
            with contextlib.suppress(OSError):  # after SIGHUP there is no terminal; a print could be under way
                os.write(2, self._said.encode())
            if self._breakable:
                raise Interrupted
            return
        if time.monotonic() - self._came < AGAIN_S:
            return
        self._kill()
        if os.isatty(2):
            os.write(2, b"\x1b[?25h")  # the live view has hidden the cursor
        os._exit(SIGNALLED + number)


def leave(code: int, say: Callable[[str], None]) -> None:
    """Exit the process with this code, and report it, if threads would block the exit forever; otherwise return.

    Call it at the end, after everything is written: a bridge to a simulator may have non-daemon threads that its
    close() does not stop.
    """
    until = time.monotonic() + GRACE_S
    for thread in _holding():
        thread.join(max(until - time.monotonic(), 0))
    if not (threads := _holding()):
        return
    import multiprocessing  # a local import: a process with such children has it loaded

    say(f"left behind threads that still run: {', '.join(thread.name for thread in threads)}")
    for child in multiprocessing.active_children():  # like the interpreter at its own exit
        child.terminate()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nothing reads it any more
            stream.flush()
    os._exit(code)


def _holding() -> list[threading.Thread]:
    """Return the threads that the interpreter would wait for."""
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
