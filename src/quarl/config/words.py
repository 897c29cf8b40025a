"""From the words of a command to its configuration; words that no verb knows are one line, as every mistake is."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import dropwhile, pairwise, takewhile
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from quarl.config import VERBS, Config
from quarl.config.base import summary
from quarl.config.options import manual, overview
from quarl.errors import QuarlError, did_you_mean

DESCRIPTION = """What low precision costs and gains in reinforcement learning.

quarl help VERB, or quarl VERB --help, says what a verb can be told; quarl version prints the version, and quarl
completion bash, zsh or fish what makes that shell complete verbs, options and their values."""
BESIDES = ("completion", "help", "version")
"""First words that are no verbs."""
HYPERPARAMETERS = """
learning_rate batch_size buffer_size learning_starts n_steps n_epochs gamma gae_lambda clip_range clip_range_vf ent_coef
vf_coef max_grad_norm normalize_advantage target_kl tau train_freq gradient_steps target_update_interval policy v_min
exploration_fraction exploration_initial_eps exploration_final_eps optimize_memory_usage policy_delay policy_kwargs
target_policy_noise target_noise_clip target_entropy use_sde sde_sample_freq use_sde_at_warmup use_rms_prop rms_prop_eps
replay_buffer_kwargs stats_window_size normalize noise_type v_max
"""
"""Of Stable-Baselines3's constructors and the zoo's configurations: what --params takes."""
SIDE_BY_SIDE = "drop it: episodes are played side by side"
SEARCH = "drop it: hyper-parameters are not searched for here"
WHOLE, UNTRAINED = "--episodes N, for episodes are played whole", "drop it: nothing is trained here"
COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    name: tuple(said)
    for names, *said in (
        ("tensorboard-log tb", "--track tensorboard", UNTRAINED),
        ("wandb-project-name", "--track wandb, whose project WANDB_PROJECT names", UNTRAINED),
        ("wandb-entity", "--track wandb, whose entity WANDB_ENTITY names", UNTRAINED),
        ("wandb-group wandb-run-group", "--track wandb, whose group WANDB_RUN_GROUP names", UNTRAINED),
        ("wandb-tags", "--track wandb, whose tags WANDB_TAGS names", UNTRAINED),
        ("gym-packages", "--env MODULE:ID, whose module registers the ID"),
        ("num-threads", "--threads", "--learner-threads", "--workers"),
        ("n-envs", "--envs-per-actor", "--batch", "--params n_envs:VALUE", SIDE_BY_SIDE),
        ("n-eval-envs", SIDE_BY_SIDE),
        ("n-timesteps total-timesteps", "--n-timesteps", WHOLE),
        ("n-eval-episodes eval-episodes", "--eval-episodes", "--episodes"),
        ("algo", "--folder FOLDER with MODEL in two words, ALGO ENV"),
        ("folder log-folder log-dir output-folder", "--folder", "--output"),
        ("trained-agent exp-id load-best load-checkpoint load-last-checkpoint", "MODEL, the path of its file or run"),
        ("yaml-file conf-file conf", "--params NAME:VALUE ..., of all that the file says"),
        ("hyperparams params", "--params", UNTRAINED),
        ("eval-env-kwargs", "--env-kwargs"),
        ("env-wrapper", "--wrapper"),
        ("noise-std", "--sigma", "--params noise_std:VALUE"),
        ("save-replay-buffer truncate-last-trajectory", "--resume, for checkpoints hold replay", UNTRAINED),
        ("progress P log-interval no-render gif uuid no-optim-plots", "drop it: there is no such choice here"),
        ("optimize-hyperparameters optimize n-trials max-total-trials sampler pruner storage n-startup-trials", SEARCH),
        ("n-evaluations study-name trial-id optimization-log-path", SEARCH),
        ("n-jobs", "--jobs", SEARCH),
        ("reward-log", "--json FILE"),
        ("norm-reward", "drop it: returns are sums of raw rewards"),
        ("custom-objects", "drop it: nothing in a file is executed"),
        ("device", "drop it: engines run on the processor"),
        ("deterministic stochastic", "drop it: the zoo's convention for the agent holds"),
    )
    for name in names.split()
}
"""Its name there -> what to do: the first that names no option, or one that the verb has."""
VERBOSE = ("-v", "--verbose")
"""The zoo's have a number behind them."""
NUMBERS = ConstructorRegistry()
"""How words become numbers."""


def parse(words: Sequence[str]) -> Config:
    """The configuration of the verb that `words` name; --help ends the program."""
    if any(re.fullmatch(r"(--?[\w-]+=)?", word) for word in words):
        raise QuarlError("a word of the command line is empty, perhaps a shell variable that is not set: name a value")
    known = [verb.verb.split()[0] for verb in VERBS]
    if words and words[0] not in known and not words[0].startswith("-"):
        raise QuarlError(
            f"unknown verb {words[0]!r}{did_you_mean(words[0], (*known, *BESIDES))} (known: {', '.join(known)})"
        )
    if {"-h", "--help"} & set(words):
        print(help_of(words))
        raise SystemExit(0)
    verbs = tuple(Annotated[verb, tyro.conf.subcommand(name)] for verb, name in zip(VERBS, known, strict=True))
    one_of: Any = Union[verbs]  # noqa: UP007  # made of a tuple, which `|` cannot take
    help_ = " ".join(["see quarl", *(word for word in words[:1] if word in known), "--help"])
    said = io.StringIO()
    try:
        with NUMBERS, contextlib.redirect_stderr(said):
            parsed, left = tyro.cli(one_of, prog="quarl", args=words, return_unknown_args=True)
    except SystemExit as end:
        if not end.code:
            raise
        sentence = _sentence(said.getvalue())
        zoos = "; the zoo's --track is --track wandb" * sentence.startswith("Missing value for argument '--track'")
        raise QuarlError(f"{sentence}{zoos}; {help_}") from None
    config: Config = parsed if isinstance(parsed, Config) else parsed.chosen
    if left:
        raise QuarlError(f"{config.verb} {_unknown(config, left, words)}; {help_}")
    config.came_from(words)
    return config


def below(kind: type[Any]) -> list[type[Config]]:
    """The verbs that a verb stands for: those of `bench`, `cluster` or `study`, or itself."""
    return [kind] if issubclass(kind, Config) else list(get_args(get_type_hints(kind)["chosen"]))


def help_of(words: Sequence[str]) -> str:
    """What --help says of the verb that the first words name, or of all verbs."""
    leaves = [leaf for kind in VERBS for leaf in below(kind) if words[: len(leaf.verb.split())] == leaf.verb.split()]
    if leaves:
        return manual(leaves[0])
    for kind in VERBS:
        if words[:1] == [kind.verb]:
            return overview(f"{kind.verb} VERB", f"{summary(kind)}.", [(verb, verb) for verb in below(kind)])
    return overview("VERB", DESCRIPTION, [(kind, below(kind)[0]) for kind in VERBS])


def _sentence(box: str) -> str:
    """What a box of tyro's says between its title and the first line without words; the rest is help."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    said = takewhile(_has_words, dropwhile(lambda line: not _has_words(line), lines))
    return " ".join(said).removesuffix(".")


def _has_words(line: str) -> bool:
    return bool(line.strip("─-"))


def _unknown(config: Config, left: Sequence[str], words: Sequence[str]) -> str:
    """What the first of those words is that were left over: an option, or else a value."""
    word = next((word for word in left if word.startswith("-")), left[0])
    if not word.startswith("-"):
        alone = next((before for before, each in pairwise(words) if each == word and before in VERBOSE), "")
        return f"has no use for {word!r}{f': {alone} stands alone' if alone else ''}"
    option = word.partition("=")[0]
    known = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(config)]
    if option in known:
        return f"cannot take {word} where it stands"
    behind = left[left.index(word) + 1 :]
    value = word.partition("=")[2] or next((each for each in behind[:1] if not each.startswith("--")), "")
    meant = counterpart(option, value, known) or did_you_mean(option, known).removesuffix("?")
    return f"has no option {option}{meant}"


def counterpart(option: str, value: str, known: Collection[str]) -> str:
    """What ends the message of an option that a verb with the options `known` has not, or nothing.

    value: what stands behind the option.
    """
    name = option.lstrip("-").replace("_", "-")
    parameter = name.replace("-", "_")
    said = (
        f"--{name}",
        *COUNTERPARTS.get(name, (f"--params {parameter}:VALUE",) * (parameter in HYPERPARAMETERS.split())),
    )
    fitting = (words for words in said if not words.startswith("--") or words.split()[0].strip(",") in known)
    words = next(fitting, "").replace(f"{parameter}:VALUE", f"{parameter}:{value or 'VALUE'}")
    return f"; {'' if words.startswith('drop') else 'use '}{words}" if words else ""


AUTO = Literal["auto"]
"""What some numbers may be instead."""


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
    """Return the whole number that `word` spells, as 100 or 1e2."""
    for read in (int, float):
        try:
            number = read(word)
        except ValueError:
            continue
        if word.isascii() and float(number).is_integer():
            return int(number)
    raise ValueError(f"{word!r} is no whole number")


def _real(word: str) -> float:
    with contextlib.suppress(ValueError):
        if word.isascii():  # Python reads the digits of every script
            return float(word)
    raise ValueError(f"{word!r} is not a number")
