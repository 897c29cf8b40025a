"""A study file: the policies, methods, precisions and seeds whose product is the study, read as data.

name: two-tasks
episodes: 100                                      # of every cell
policies:
  - {algo: dqn, env: CartPole-v1, source: "zoo:sb3"}
  - {algo: ppo, env: Acrobot-v1, source: train, n_timesteps: 100000}
methods:
  - {method: fp32}
  - {method: ptq, precision: [fp16, 8, 4], scheme: [default, naive]}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl.config import ActorQConfig
from quarl.config.base import METERED, SEEDS
from quarl.config.environment import OPTIONS, EnvironmentConfig, spelled
from quarl.config.learner import unknown_algorithm
from quarl.config.train import LEARNERS, QAT_OPTIONS
from quarl.envs.bound import LIMIT, longest
from quarl.envs.options import EnvironmentOptions
from quarl.errors import QuarlError, did_you_mean
from quarl.experiments.entries import MARGIN_PCT, MethodEntry, PolicyEntry, Study
from quarl.inert.yaml import key_lines, read_yaml
from quarl.quant.spec import QatSpec, QuantSpec

SHIPPED = Path(__file__).with_name("shipped")
METHODS = ("fp32", "ptq", "qat", "actorq", "untrained")
MODES = ("dynamic", "static")
SET_BY_CELLS = (
    *("algo", "env", "actor_precision", "seed", "output", "json", "resume", "plan", "track"),
    *(*METERED, *OPTIONS),
)
"""Options of `quarl actorq` that a cell sets itself."""
ACTORQ = tuple(f.name for f in dataclasses.fields(ActorQConfig) if f.name not in SET_BY_CELLS)
KEYS = ("name", "about", "episodes", "margin", "seeds", "limits", "agents", "policies", "methods")
TRAIN = ("n_envs", "vec_env", "learner_dtype", "eval_freq", "eval_episodes", "save_freq", "threads", "device")
"""Options of `quarl train` that a policy may have for its trainings."""
POLICY = (
    *("algo", "env", "source", "na", "n_timesteps", "params", "seeds", "episodes", "train", "actorq"),
    *("name", "normalize", "deterministic", *OPTIONS),
)
OF_METHOD: Mapping[str, tuple[str, ...]] = {
    "fp32": (),
    "untrained": (),
    "ptq": ("precision", "scheme", "mode"),
    "qat": ("precision", "fine_tune", *QAT_OPTIONS),
    "actorq": ("precision", *ACTORQ),
}
Where = tuple[str | int, ...]


def shipped() -> list[str]:
    """Names of the studies that come with QuaRL."""
    return sorted(path.stem for path in SHIPPED.glob("*.yml"))


def read(name: str, agents: Path | None = None) -> Study:
    """The study in the file `name`, or the one of that name that comes with QuaRL.

    agents: the folder of its zoo: sources, in place of the one that the file names; a shipped study's is the working
    directory.
    """
    own = name in shipped()
    path = SHIPPED / f"{name}.yml" if own else Path(name)
    if not own and not path.exists():
        raise QuarlError(f"no study file {name}{did_you_mean(name, shipped())} (QuaRL's own: {', '.join(shipped())})")
    document = read_yaml(path)
    return _Reader(path, key_lines(path)).study(document, agents, Path() if own else path.parent)


class _Reader:
    """Values of a file, checked; a mistake is one line that names its line."""

    def __init__(self, path: Path, lines: Mapping[Where, int]) -> None:
        self.path, self.lines = path, lines

    def study(self, document: Mapping[str, Any], agents: Path | None, home: Path) -> Study:
        self.keys(document, KEYS, (), "a study")
        self.plain(document, ())
        for key in ("policies", "methods"):
            if not isinstance(document.get(key), list) or not document[key]:
                raise self.wrong((key,) if key in document else (), f"{key} is missing: a list of at least one")
        limits = self.mapping(document, "limits", ())
        self.keys(limits, ("minutes", "memory_gb"), ("limits",), "limits")
        margin = self.number(document, "margin", MARGIN_PCT, ())
        if margin >= 100:
            raise self.wrong(("margin",), f"margin is a percentage between 0 and 100, got {margin:g}")
        methods = tuple(self.method(entry, ("methods", k)) for k, entry in enumerate(document["methods"]))
        if not any(entry.method == "fp32" for entry in methods):
            for entry in methods:
                if entry.method in ("ptq", "qat"):
                    raise QuarlError(
                        f"{self.path}, line {entry.line}: {entry.method} is compared with fp32; add {{method: fp32}}"
                    )
        return Study(
            path=self.path,
            name=self.text(document, "name", (), default=self.path.stem),
            about=self.text(document, "about", (), default=""),
            episodes=self.count(document, "episodes", 100, ()),
            margin=margin,
            seeds=self.seeds(document, ()) or (0,),
            minutes=self.number(limits, "minutes", 60.0, ("limits",)),
            memory_gb=self.number(limits, "memory_gb", 4.0, ("limits",)),
            agents=agents or home / self.text(document, "agents", (), default="."),
            policies=tuple(self.policy(entry, ("policies", k)) for k, entry in enumerate(document["policies"])),
            methods=methods,
            document=document,
        )

    def policy(self, entry: Any, at: Where) -> PolicyEntry:
        self.keys(entry, POLICY, at, "a policy")
        algo, env = self.text(entry, "algo", at), self.text(entry, "env", at)
        if algo not in LEARNERS:
            raise self.wrong((*at, "algo"), unknown_algorithm(algo, LEARNERS))
        sources = self.words(entry, "source", at)
        for source in sources:
            kind, colon, rest = source.partition(":")
            if source != "train" and not (colon and rest and kind in ("zoo", "hub", "file")):
                known = "train, zoo:FOLDER, hub:ORG/NAME and file:PATH"
                raise self.wrong((*at, "source"), f"source {source!r} is none of {known}")
        na = self.text(entry, "na", at, default="")
        if not sources and not na:
            raise self.wrong(at, "source is missing: train, zoo:FOLDER or hub:ORG/NAME, or na: and a reason")
        options = self.mapping(entry, "actorq", at)
        self.keys(options, ACTORQ, (*at, "actorq"), "quarl actorq")
        self.mapping(options, "params", (*at, "actorq"))
        training = self.mapping(entry, "train", at)
        self.keys(training, TRAIN, (*at, "train"), "quarl train")
        if type(deterministic := entry.get("deterministic", False)) is not bool:
            raise self.wrong((*at, "deterministic"), "deterministic must be true or false")
        return PolicyEntry(
            line=self.lines[at],
            algo=algo,
            env=env,
            sources=sources,
            na=na,
            name=self.text(entry, "name", at, default=""),
            n_timesteps=self.count(entry, "n_timesteps", None, at),
            params=self.mapping(entry, "params", at),
            seeds=self.seeds(entry, at),
            episodes=self.count(entry, "episodes", None, at),
            actorq=options,
            train=training,
            normalize=self.text(entry, "normalize", at) if "normalize" in entry else None,
            deterministic=deterministic,
            world=self.world(entry, at),
        )

    def world(self, entry: Mapping[str, Any], at: Where) -> dict[str, Any]:
        kwargs = self.mapping(entry, "env_kwargs", at)
        found = {
            "env_kwargs": spelled(kwargs),
            "wrapper": self.words(entry, "wrapper", at),
            **{name: self.count(entry, name, None, at) for name in OPTIONS[2:]},
        }
        given = {name: value for name, value in found.items() if value}
        try:
            EnvironmentOptions.said(EnvironmentConfig(**given))
            longest(given.get(LIMIT) or kwargs.get(LIMIT), None)
        except QuarlError as error:
            raise self.wrong(at, str(error)) from None
        return {"environment": given} if given else {}

    def method(self, entry: Any, at: Where) -> MethodEntry:
        if not isinstance(entry, Mapping) or entry.get("method") not in METHODS:
            found = entry.get("method") if isinstance(entry, Mapping) else entry
            raise self.wrong(at, f"unknown method {str(found)[:60]!r}; use {', '.join(METHODS)}")
        method: str = entry["method"]
        self.keys(entry, ("method", *OF_METHOD[method]), at, method)
        self.mapping(entry, "params", at)
        found = MethodEntry(
            line=self.lines[at],
            method=method,
            precisions=self.words(entry, "precision", at) or ("fp32",),
            schemes=self.words(entry, "scheme", at) or ("default",),
            modes=self.words(entry, "mode", at) or ("dynamic",),
            fine_tune=self.number(entry, "fine_tune", None, at),
            options=self.options(entry, {"actorq": ACTORQ, "qat": QAT_OPTIONS}.get(method, ()), at),
        )
        if found.fine_tune is not None and found.fine_tune > 1:
            raise self.wrong(
                (*at, "fine_tune"), f"fine_tune is a share of the agent's training, as in 0.1, got {found.fine_tune:g}"
            )
        if OF_METHOD[method] and "precision" not in entry:
            raise self.wrong(at, f"{method} needs precision: one, or a list")
        for mode in found.modes:
            if mode not in MODES:
                raise self.wrong((*at, "mode"), f"mode must be dynamic or static, got {mode!r}")
        try:
            for text in found.precisions:
                for scheme in found.schemes:
                    QatSpec.parse(text) if method == "qat" else QuantSpec.parse(text, scheme=scheme)
        except QuarlError as error:
            raise self.wrong(at, str(error)) from None
        return found

    def options(self, entry: Mapping[str, Any], names: Sequence[str], at: Where) -> dict[str, Any]:
        """Those of another verb; YAML often spells counts 1e6, and lists are its lists."""
        found = {
            name: tuple(entry[name]) if type(entry[name]) is list else entry[name] for name in names if name in entry
        }
        return found | {name: self.count(entry, name, None, at) for name in ("quant_delay",) if found.get(name)}

    def keys(self, found: Any, known: Sequence[str], at: Where, what: str) -> None:
        """Refuses what is no mapping, and the first key that nothing is known about."""
        if not isinstance(found, Mapping):
            raise self.wrong(at, f"{what} is settings by name, as in {{{known[0]}: ...}}, got {str(found)[:60]!r}")
        for key in found:
            if key not in known:
                meant = did_you_mean(str(key), known) or f"; known: {', '.join(known[:12])}"
                raise self.wrong((*at, key), f"unknown key {str(key)[:60]!r} of {what}{meant}")

    def plain(self, found: Any, at: Where) -> None:
        """Refuses what YAML can hold and no cell can be made of: dates, bytes, sets, infinities, keys but text."""
        name = next((key for key in reversed(at) if isinstance(key, str)), "a study")
        if isinstance(found, Mapping):
            for key, value in found.items():
                if not isinstance(key, str):
                    raise self.wrong(at, f"{name} has the key {str(key)[:60]}; write it as text, in quotes")
                self.plain(value, (*at, key))
        elif isinstance(found, list):
            for number, value in enumerate(found):
                self.plain(value, (*at, number))
        elif not isinstance(found, str | int | float | None) or (isinstance(found, float) and not math.isfinite(found)):
            raise self.wrong(at, f"{name} is {str(found)[:60]!r}; write a number, text, a list or values by name")

    def text(self, found: Mapping[str, Any], key: str, at: Where, default: str | None = None) -> str:
        value = found.get(key, default)
        if not isinstance(value, str) or len(value) > 400 or (key not in ("about", "na") and not value.isprintable()):
            raise self.wrong((*at, key) if key in found else at, f"{key} must be a word, got {str(value)[:60]!r}")
        return " ".join(value.split())

    def words(self, found: Mapping[str, Any], key: str, at: Where) -> tuple[str, ...]:
        """One word or number, or a list of them, as words; none where the key is missing."""
        value = found.get(key, [])
        if key in found and value == []:
            raise self.wrong((*at, key), f"{key} is an empty list; name at least one, or drop {key}")
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in listed):
            raise self.wrong((*at, key), f"{key} must be a word or a list of words, got {str(value)[:60]!r}")
        return tuple(str(one) for one in listed)

    def mapping(self, found: Mapping[str, Any], key: str, at: Where) -> Mapping[str, Any]:
        value = found.get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong((*at, key), f"{key} must be values by name, got {str(value)[:60]!r}")
        return value

    def seeds(self, found: Mapping[str, Any], at: Where) -> tuple[int, ...] | None:
        value = found.get("seeds")
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or not value
            or not all(type(seed) is int and 0 <= seed < SEEDS for seed in value)
        ):
            raise self.wrong(
                (*at, "seeds"), f"seeds must be a list of numbers from 0 to 2**32 - 1, got {str(value)[:60]!r}"
            )
        return tuple(value)

    def count(self, found: Mapping[str, Any], key: str, default: Any, at: Where) -> Any:
        """A whole number from 1 on, which YAML often spells 1e6; `default` where the key is missing."""
        value = self.number(found, key, default, at)
        if value is not None and (value != int(value) or value < 1):
            raise self.wrong((*at, key), f"{key} must be a whole number from 1 on, got {value}")
        return None if value is None else int(value)

    def number(self, found: Mapping[str, Any], key: str, default: Any, at: Where) -> Any:
        """A number above 0; `default` where the key is missing."""
        value = found.get(key, default)
        if value is None and key not in found:
            return None
        if isinstance(value, str):  # YAML takes 1e6 for a word: it has no point
            try:
                value = float(value)
            except ValueError:
                value = math.nan
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**53:
            raise self.wrong((*at, key), f"{key} must be a number above 0, got {str(found[key])[:60]!r}")
        return value

    def wrong(self, at: Where, message: str) -> QuarlError:
        while at and at not in self.lines:
            at = at[:-1]
        return QuarlError(f"{self.path}{f', line {self.lines[at]}' if at else ''}: {message}")
