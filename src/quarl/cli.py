"""The command line: a verb's configuration goes to the function of that name in `quarl.commands`; no logic here."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from quarl import __version__
from quarl.config import VERBS, BenchConfig, Config, StudyConfig
from quarl.errors import QuarlError

DESCRIPTION = """What low precision costs and gains in reinforcement learning.

quarl --version prints the version."""
INTERRUPTED = 130
"""The shell's number for a program that Ctrl-C ended: 128 + SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code: 0 done, 2 the user's mistake (one line on stderr), 130 Ctrl-C;
    4 too few actors left."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"quarl {__version__}")
        return 0
    try:
        config = parse(words)
        config.check()
        command = importlib.import_module(f"quarl.commands.{config.verb.split()[0]}")
        code: int | None = command.run(config)
    except QuarlError as error:
        print(f"quarl: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has left (`quarl ... | head`): nothing to report, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # the others are met where it is known what they mean
            raise
        print(f"quarl: the name {str(error.filename)[:40]}... is too long: choose another", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("quarl: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code or 0


def parse(words: Sequence[str]) -> Config:
    """The configuration of the verb that `words` name; --help and words that no verb knows end the program."""
    verbs = tuple(Annotated[verb, tyro.conf.subcommand(verb.verb.split()[0])] for verb in VERBS)
    one_of: Any = Union[verbs]  # noqa: UP007  # made of a tuple, which `|` cannot take
    config: Config | BenchConfig | StudyConfig = tyro.cli(one_of, prog="quarl", description=DESCRIPTION, args=words)
    return config.chosen if isinstance(config, BenchConfig | StudyConfig) else config
