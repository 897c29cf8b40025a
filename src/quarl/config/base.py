"""Common parts of all verbs: the shell command that repeats a run, and checks before anything is read or run."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from quarl import literals
from quarl.errors import QuarlError
from quarl.fields import AT_LEAST_ONE, ENVIRONMENT, OUTPUT, SOME, shown
from quarl.quant.spec import edge_bits, integer_bits
from quarl.specs import METERED, EnergySpec, Flag, Spec

JsonFile = Annotated[Path | None, shown("FILE"), OUTPUT]
Output = Annotated[Path, shown("DIR", "-o"), OUTPUT]
Normalize = Annotated[str | None, shown("FILE|none", default="found beside the agent"), ENVIRONMENT]
EnvId = Annotated[str | None, shown("ID", default="the one it was trained on"), ENVIRONMENT]
Observations = Annotated[Path | None, shown("FILE")]
Steps = Annotated[int | None, shown("N", "-n", default="RL Zoo's, or 100000"), AT_LEAST_ONE]


@dataclass(frozen=True, kw_only=True)
class Config(Spec):
    """Options that all verbs have."""

    verb: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]
    """Complete commands, the common one first."""
    positional: ClassVar[tuple[str, ...]] = ("model",)
    """Positional arguments, which precede the options and have no option name."""

    json: JsonFile = None
    """Also write the rows to this JSON file; - prints them, and everything else on stderr."""
    verbose: Annotated[Flag, shown(None, "-v"), OUTPUT] = False
    """Also report on stderr files read, values detected, versions and times."""
    quiet: Annotated[Flag, shown(None, "-q"), OUTPUT] = False
    """Print only errors on stderr and results on stdout: no progress, and no command that repeats the run."""

    def check(self) -> None:
        """Refuse invalid values, and a --json that cannot be written, before anything is read or run."""
        super().check()
        if self.verbose and self.quiet:
            raise QuarlError("--verbose and --quiet are mutually exclusive: keep one")
        file = self.json
        if file is not None and file not in STDOUT and not _is_writable(file):
            raise QuarlError(f"cannot write --json {file}: use a file in a writable folder")
        if file is not None and file.is_file() and not _may_be_replaced(file):
            raise QuarlError(f"--json {file} would overwrite a file that is not JSON: use another file")

    def look(self) -> None:
        """Refuse missing files before anything is loaded that takes seconds."""

    @property
    def typed(self) -> frozenset[str]:
        """Options that were typed, even with their defaults; empty if no command line was parsed."""
        names: frozenset[str] = vars(self).get("_typed", frozenset())
        return names

    def came_from(self, words: Sequence[str]) -> None:
        """Remember the options that these words name."""
        named = {word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")}
        vars(self)["_typed"] = frozenset(field.name for field in dataclasses.fields(self)) & named

    def command_line(self) -> str:
        """Return the shell command that repeats this run.

        It has the seed, the episodes, and all values that differ from the defaults.
        """
        words = ["quarl", *self.verb.split()]
        options: list[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in self.positional:
                words.extend(map(str, value if isinstance(value, tuple) else (value,)))
            elif value is None or field.name in LOUDNESS:
                continue
            elif field.name in ("seed", "episodes", "output") or value != field.default:
                options.extend(_option(field.name, value))
        return shlex.join([*words, *options])


STDOUT = (Path("-"), Path("/dev/stdout"))
"""Values of --json that print the rows as JSON on stdout, and everything else on stderr."""
LOUDNESS = ("verbose", "quiet")
ASIDE = ("json", *LOUDNESS, *METERED)
"""Options that affect no result except the measured energy."""


@dataclass(frozen=True, kw_only=True)
class MeteredConfig(EnergySpec, Config):
    """A verb whose energy can be measured."""


@dataclass(frozen=True, kw_only=True)
class DrawnConfig(Config):
    """A verb that draws figures."""

    figure_format: Annotated[tuple[Literal["png", "pdf", "svg"], ...], SOME, OUTPUT] = ("png",)
    """Formats of the files of figures, for example png pdf."""


def summary(kind: type[Any]) -> str:
    """Return the first sentence of a verb's description, without its period."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()).removesuffix(".")


def in_words(value: Any) -> str:
    """Return an option's value as it is typed; empty if it is off or missing."""
    if value is None or value is False:
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *map(str, value)] if isinstance(value, tuple) else [flag, str(value)]


def check_device(name: str) -> None:
    """Refuse a device name that PyTorch does not know."""
    if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu|hpu|mtia)(:[0-9]+)?", name):
        raise QuarlError(f"--device is {name[:60]!r}; use auto, cpu, cuda or another of PyTorch's")


def check_tracking(track: str) -> None:
    """Refuse a tracker that is not installed."""
    if track != "none" and importlib.util.find_spec(track) is None:
        raise QuarlError(f"--track {track} needs an extra: pip install 'quarl[{track}]'")


def check_folder(folder: Path) -> None:
    """Refuse an output folder that cannot be written."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
    if not _takes_files(nearest):
        raise QuarlError(f"cannot write to {folder}: choose a folder that exists or can be made")


def is_kept(file: Path) -> bool:
    """Return True if the file must be written in place instead of replaced: a link, a pipe or a device."""
    return file.is_symlink() or (file.exists() and not file.is_file())


def _is_writable(file: Path) -> bool:
    return os.access(file, os.W_OK) and not file.is_dir() if is_kept(file) else _takes_files(file.parent)


def _may_be_replaced(file: Path) -> bool:
    """Return True if the file is empty or may be JSON; a model given by mistake begins with other bytes."""
    with file.open("rb") as opened:
        return opened.read(64).lstrip()[:1] in (b"", b"{", b"[")


def _takes_files(folder: Path) -> bool:
    """Return True if files can be created in the folder, by trying: root's permissions do not tell for /proc."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def hyperparameters(
    params: tuple[str, ...], read: Callable[[str], Any] = literals.written, flag: str = "--params"
) -> dict[str, Any]:
    """Return the words NAME:VALUE of `flag` by name, as in a config.yml.

    Args:
        params: Words of the option.
        read: Converts a VALUE, and raises ValueError for an invalid one.
        flag: Name of the option, for error messages.
    """
    values: dict[str, Any] = {}
    for text in params:
        name, colon, value = text.partition(":")
        try:
            if not (colon and name.isidentifier()):
                raise ValueError
            values[name] = read(value)
        except ValueError:
            example = "learning_rate:1e-3" if flag == "--params" else "continuous:True"
            raise QuarlError(f"{flag} {text!r} is not NAME:VALUE, as in {example}") from None
    return values


def layer_widths(text: str, flag: str) -> list[int]:
    """Return the numbers of a text like 256,128; raise QuarlError, naming the flag, for any other text."""
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= 65536 for word in words):
        raise QuarlError(f"{flag} {text!r} is not a list of layer widths 1..65536, as in 256,256")
    return [int(word) for word in words]


def narrow_edges(config: Config) -> list[str]:
    """Return warnings about precisions whose first and last layers have, or were requested to have, the fewest bits."""
    words = " ".join(in_words(getattr(config, name, None)) for name in ("bits", "qat", "actor_precision")).split()
    parsed = {word: bits for word in words if (bits := integer_bits(word)) is not None}
    least = edge_bits(getattr(config, "edge_bits", "same")) if "edge_bits" in config.typed else None
    narrow = [word for word, (weights, _, edges) in parsed.items() if (edges or weights) < weights]
    whole = [word for word, (weights, _, edges) in parsed.items() if edges is None and (least or weights) < weights]
    return [
        *(f"{word}: its first and last layers have fewer bits than the others" for word in narrow),
        *(f"--edge-bits {least} is below {word}: all its layers keep one width" for word in whole),
    ]
