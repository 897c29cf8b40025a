"""Parsing of a command's words into its configuration; unknown words raise one-line errors, like every mistake."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from quarl.config import VERBS, Config
from quarl.config.base import summary
from quarl.config.manual import manual, overview
from quarl.errors import QuarlError, did_you_mean

DESCRIPTION = """Measure the costs and gains of low precision in reinforcement learning.

quarl help VERB, or quarl VERB --help, lists the options of a verb. quarl version prints the version. quarl completion
bash, zsh or fish prints a script that completes verbs, options and their values."""
BESIDES = ("completion", "help", "version")
"""First words that are not verbs."""
SHELLS = ("bash", "zsh", "fish")
"""Shells whose completion `quarl completion` prints."""
HYPERPARAMETERS = """
learning_rate batch_size buffer_size learning_starts n_steps n_epochs gamma gae_lambda clip_range ent_coef vf_coef
max_grad_norm normalize_advantage target_kl tau train_freq gradient_steps target_update_interval policy_kwargs
exploration_fraction exploration_initial_eps exploration_final_eps policy_delay use_sde target_entropy
"""
"""Arguments of Stable-Baselines3's algorithms that --params takes."""
COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    "tensorboard-log": ("--track tensorboard",),
    "total-timesteps": ("--n-timesteps",),
    "n-eval-episodes": ("--eval-episodes", "--episodes"),
    "n-envs": ("--envs-per-actor", "--batch"),
    "num-threads": ("--threads", "--learner-threads", "--workers"),
    "log-folder": ("--folder", "--output"),
    "load-best": ("MODEL, the path of its file or run",),
    "hyperparams": ("--params",),
    "env-wrapper": ("--wrapper",),
    "gym-packages": ("--env MODULE:ID, whose module registers the ID",),
}
"""Options of RL Zoo's scripts and former ones, with their replacements: the first name that the verb has, or text
without a name.
"""
NUMBERS = ConstructorRegistry()
"""Registry of conversions from words to numbers."""


def parse(words: Sequence[str]) -> Config:
    """Return the configuration of the verb that `words` name; --help ends the program."""
    if any(re.fullmatch(r"(--?[\w-]+=)?", word) for word in words):
        raise QuarlError("a word of the command line is empty, perhaps an unset shell variable: give a value")
    # Answer help and unknown verbs without tyro.
    known = [verb.verb.split()[0] for verb in VERBS]
    if words and words[0] not in known and not words[0].startswith("-"):
        raise QuarlError(
            f"unknown verb {words[0]!r}{did_you_mean(words[0], (*known, *BESIDES))} (known: {', '.join(known)})"
        )
    if {"-h", "--help"} & set(words):
        print(help_of(words))
        raise SystemExit(0)
    if words[:1] == ["bench"] and words[1:2] != ["latency"]:
        raise QuarlError("quarl bench needs the word latency, as in quarl bench latency MODEL; see quarl bench --help")
    help_ = " ".join(["see quarl", *(word for word in words[:1] if word in known), "--help"])
    # Parse the words, and turn tyro's box into one line.
    said = io.StringIO()
    try:
        with NUMBERS, contextlib.redirect_stderr(said):
            parsed, left = tyro.cli(_one_of(), prog="quarl", args=words, return_unknown_args=True)
    except SystemExit as end:
        if not end.code:
            raise
        raise QuarlError(f"{_sentence(said.getvalue())}; {help_}") from None
    config: Config = parsed if isinstance(parsed, Config) else parsed.chosen
    if left:
        raise QuarlError(f"{config.verb} {_unknown(config, left, words)}; {help_}")
    config.came_from(words)
    return config


def _one_of() -> Any:
    """Return the union of all verbs, of which tyro parses one."""
    verbs = tuple(Annotated[verb, tyro.conf.subcommand(verb.verb.split()[0])] for verb in VERBS)
    return Union[verbs]  # noqa: UP007  # made of a tuple, which `|` cannot take


def completion(shell: str = "") -> str:
    """Return the script that completes verbs, options and their values; raise QuarlError for an unknown shell."""
    if shell not in SHELLS:
        raise QuarlError(f"quarl completion requires one of {', '.join(SHELLS)}, got {shell!r}")
    printed = io.StringIO()
    with NUMBERS, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(_one_of(), prog="quarl", args=["--tyro-print-completion", shell])
    # a line break in tyro's description of an option would become more words to choose from
    script = re.sub(r"(?<=[\w,;:.)\]}`])\\n(?=[\w({`-])", " ", printed.getvalue())
    # otherwise bash offers no files for MODEL
    files = "complete -o bashdefault -o default -F _tyro_quarl quarl\n" if shell == "bash" else ""
    return script + files


def below(kind: type[Any]) -> list[type[Config]]:
    """Return the verbs below a verb: those of `bench`, `cluster` or `study`, or the verb itself."""
    return [kind] if issubclass(kind, Config) else list(get_args(get_type_hints(kind)["chosen"]))


def help_of(words: Sequence[str]) -> str:
    """Return the --help text of the verb that the first words name, or of all verbs."""
    leaves = [leaf for kind in VERBS for leaf in below(kind) if words[: len(leaf.verb.split())] == leaf.verb.split()]
    if leaves:
        return manual(leaves[0])
    for kind in VERBS:
        if words[:1] == [kind.verb]:
            return overview(f"{kind.verb} VERB", f"{summary(kind)}.", [(verb, verb) for verb in below(kind)])
    return overview("VERB", DESCRIPTION, [(kind, below(kind)[0]) for kind in VERBS])


def _sentence(box: str) -> str:
    """Return the text of tyro's box between its title and the first line without words; the rest is help."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    blocks = groupby(lines, key=lambda line: bool(line.strip("─-")))  # between blank lines and rules
    return " ".join(next(block for has_words, block in blocks if has_words)).removesuffix(".")


def _unknown(config: Config, left: Sequence[str], words: Sequence[str]) -> str:
    """Return the error for the first word that was left over: an option, or else a value."""
    word = next((word for word in left if word.startswith("-")), left[0])
    if not word.startswith("-"):
        return f"got an unexpected argument {word!r}"
    option = word.partition("=")[0]
    known = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(config)]
    if option in known:
        return f"cannot take {word} at this position"
    behind = left[left.index(word) + 1 :]
    value = word.partition("=")[2] or next((each for each in behind[:1] if not each.startswith("--")), "")
    meant = counterpart(option, value, known) or did_you_mean(option, known).removesuffix("?")
    return f"has no option {option}{meant}"


def counterpart(option: str, value: str, known: Collection[str]) -> str:
    """Return the end of the message for an option that a verb with the options `known` lacks, or "".

    Args:
        option: Option as it was typed.
        value: Word behind it.
        known: Options of the verb.
    """
    name = option.lstrip("-").replace("_", "-")
    parameter = name.replace("-", "_")
    of_learner = (f"--params {parameter}:{value or 'VALUE'}",) * (parameter in HYPERPARAMETERS.split())
    said = (f"--{name}", *COUNTERPARTS.get(name, of_learner))
    fitting = (words for words in said if not words.startswith("--") or words.split()[0] in known)
    return f"; use {words}" if (words := next(fitting, "")) else ""


AUTO = Literal["auto"]
"""Alternative value of some numbers."""


@NUMBERS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kinds = set(get_args(info.type) or (info.type,))
    names = get_args(AUTO) if AUTO in kinds else ()
    if (kinds := kinds - {AUTO}) - {NoneType} not in ({int}, {float}):
        return None
    read = _count if int in kinds else _real
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT" if int in kinds else "FLOAT",
        instance_from_str=lambda words: words[0] if words[0] in names else read(words[0]),
        is_instance=lambda value: value in names or isinstance(value, tuple(kinds)),
        str_from_instance=lambda value: [str(value)],
    )


def _count(word: str) -> int:
    """Return the whole number of `word`, as 100 or 1e2."""
    for read in (int, float):
        try:
            number = read(word)
        except ValueError:
            continue
        if word.isascii() and float(number).is_integer():
            return int(number)
    raise ValueError(f"{word!r} is not a whole number")


def _real(word: str) -> float:
    with contextlib.suppress(ValueError):
        if word.isascii():  # Python would read the digits of every script
            return float(word)
    raise ValueError(f"{word!r} is not a number")
