"""What RL Zoo folders say about an agent: where its zip is, its environment, wrappers and observation statistics.

Layout: FOLDER/ALGO/ENV_1/ENV.zip with FOLDER/ALGO/ENV_1/ENV/{config.yml,args.yml,vecnormalize.pkl} beside it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.actor import LAYOUTS, ON_POLICY
from quarl.policy.container import read_bytes
from quarl.policy.normalizer import read_running, read_vecnormalize
from quarl.policy.operators import Normalize

YAML_BYTES = 2**16
"""The zoo's files have 1 to 3 kB; parsing is slow, and a longer one is something else."""
MAX_VALUES = 1000
"""Values of a YAML file, aliases counted each time they are used."""
_SAMPLED = re.compile(r"NoFrameskip-|^ALE[/-]|^(MiniGrid|BabyAI)-")
MAX_DEPTH = 20
"""Levels of a YAML file; the zoo's have 4."""
VEC_FRAME_STACK = "stable_baselines3.common.vec_env.VecFrameStack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The training environment of an agent, as far as its folder tells."""

    env_id: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Outermost last."""
    normalize: Normalize | None = None
    """Of the wrapped environment's raw observation, before frame stacking."""


def find(folder: str | Path, algo: str, env_id: str) -> Path:
    """The file of the latest run of `algo` on `env_id` under `folder`, as the zoo's own scripts choose it."""
    env = env_id.replace("/", "-")
    runs = Path(folder) / algo
    if not runs.is_dir():
        found = [path.name for path in _entries(Path(folder)) if path.is_dir()]
        raise QuarlError(f"no folder {runs}; {folder} has {_listed(found)}")
    numbered = {}
    for path in _entries(runs):
        match = re.fullmatch(rf"{re.escape(env)}_([0-9]+)", path.name)
        if match and path.is_dir():
            numbered[int(match[1])] = path
    if not numbered:
        for suffix in (".zip", ".pkl"):  # the zoo of Stable-Baselines 2 has no folders of runs
            if (runs / f"{env}{suffix}").is_file():
                return runs / f"{env}{suffix}"
        names = {re.sub(r"_[0-9]+$", "", path.name) for path in _entries(runs)}
        raise QuarlError(f"no agent for {env_id} in {runs}; it has {_listed(sorted(names))}")
    return find_in_run(numbered[max(numbered)])


def find_in_run(run: Path) -> Path:
    """The zip in one run's folder: ENV.zip, or best_model.zip where training did not reach its end."""
    env = re.sub(r"_[0-9]+$", "", run.resolve().name)
    for name in (f"{env}.zip", "best_model.zip"):
        if (run / name).is_file():
            return run / name
    zips = [path.name for path in _entries(run) if path.suffix == ".zip"]
    raise QuarlError(f"{run} has neither {env}.zip nor best_model.zip; name one of its files: {_listed(zips)}")


def read_settings(model: Path) -> Settings:
    """What lies beside the zip `model` in the zoo's layout; empty settings where nothing does."""
    run = re.sub(r"_[0-9]+$", "", model.resolve().parent.name)
    stats = next((model.parent / name for name in (model.stem, run) if (model.parent / name).is_dir()), None)
    if stats is None:
        return Settings(env_id=model.stem if re.search(r"-v[0-9]+$", model.stem) else "")
    config = _document(stats / "config.yml")
    args = _document(stats / "args.yml")
    return Settings(
        env_id=_text(args.get("env") or stats.name, stats / "args.yml", "env"),
        env_kwargs=_mapping(args.get("env_kwargs") or config.get("env_kwargs"), stats / "args.yml", "env_kwargs"),
        wrappers=_wrappers(config, stats / "config.yml"),
        normalize=_statistics(config, stats),
    )


def samples_actions(algo: str, env_id: str) -> bool:
    """True where the zoo evaluates with sampled actions (`enjoy.py`): Atari and MiniGrid.

    Never for value-based agents: there it means epsilon-greedy, which is no property of the network.
    """
    return LAYOUTS[algo] is ON_POLICY and bool(_SAMPLED.search(env_id))


def _statistics(config: Mapping[str, Any], stats: Path) -> Normalize | None:
    """vecnormalize.pkl where config.yml asks for it, or where there is no config.yml to ask.

    The zoo of Stable-Baselines 2 had obs_rms.pkl instead, with the wrapper's default epsilon and clip.
    """
    path, running = stats / "vecnormalize.pkl", stats / "obs_rms.pkl"
    wanted = config.get("normalize", False) if config else path.is_file() or running.is_file()
    if not wanted:
        return None
    if path.is_file():
        return read_vecnormalize(path)
    if running.is_file() and _options(wanted, stats / "config.yml").get("norm_obs", True):
        return read_running(running)
    if not _options(wanted, stats / "config.yml").get("norm_obs", True):
        return None
    raise QuarlError(f"no file {path}, but config.yml says that observations were normalised; copy it there")


def _options(normalize: Any, path: Path) -> Mapping[str, Any]:
    """VecNormalize's arguments: true, {...}, or either of the zoo's two spellings of a dict as text."""
    if isinstance(normalize, bool | Mapping):
        return normalize if isinstance(normalize, Mapping) else {}
    try:
        tree = ast.parse(str(normalize)[:1000], mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "dict" and not tree.args:
            return {str(item.arg): ast.literal_eval(item.value) for item in tree.keywords}
        options = ast.literal_eval(tree)
        if isinstance(options, dict):
            return options
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    raise QuarlError(f"{path}: normalize is {str(normalize)[:60]!r}; write true, false or a dict of plain values")


def _wrappers(config: Mapping[str, Any], path: Path) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """env_wrapper, then vec_env_wrapper, then frame stacking: the order in which the zoo applies them."""
    wrappers: list[tuple[str, Mapping[str, Any]]] = []
    for key in ("env_wrapper", "vec_env_wrapper"):
        entries = config.get(key) or []
        for entry in entries if isinstance(entries, list) else [entries]:
            if isinstance(entry, Mapping) and len(entry) == 1:
                name, kwargs = next(iter(entry.items()))
            else:
                name, kwargs = entry, None
            wrappers.append((_text(name, path, key), _mapping(kwargs, path, key)))
    stack = config.get("frame_stack") or 0
    if type(stack) is not int or not 0 <= stack <= 1000:
        raise QuarlError(f"{path}: frame_stack is {str(stack)[:60]!r}, not a number of frames")
    if stack:
        wrappers.append((VEC_FRAME_STACK, {"n_stack": stack}))
    return tuple(wrappers)


def _text(value: Any, path: Path, key: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise QuarlError(f"{path}: {key} is {str(value)[:60]!r}, not a name")
    return value


def _mapping(value: Any, path: Path, key: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise QuarlError(f"{path}: {key} is {str(value)[:60]!r}, not a mapping of names to values")
    return value


class _Loader(yaml.SafeLoader):
    """YAML without code: of Python's tags, only the two that spell an OrderedDict and a tuple, both read as data."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge keys are not needed, and a few of them multiply into more entries than fit in memory."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not supported", node.start_mark)


def _ordered_dict(loader: yaml.SafeLoader, node: yaml.Node) -> dict[Any, Any]:
    """!!python/object/apply:collections.OrderedDict [[[key, value], ...]]"""
    if not isinstance(node, yaml.SequenceNode):
        raise yaml.constructor.ConstructorError(None, None, "OrderedDict without a list", node.start_mark)
    arguments = loader.construct_sequence(node, deep=True)
    return dict(arguments[0]) if arguments else {}


def _tuple(loader: yaml.SafeLoader, node: yaml.Node) -> list[Any]:
    if not isinstance(node, yaml.SequenceNode):
        raise yaml.constructor.ConstructorError(None, None, "tuple without a list", node.start_mark)
    return loader.construct_sequence(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", _ordered_dict)
_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a zoo's YAML file holds, made of plain values only; a tag that names code is refused."""
    data = read_bytes(path, limit_bytes=YAML_BYTES)
    try:
        document = yaml.load(data, Loader=_Loader)  # a SafeLoader with two more constructors, which make plain values
        _count(document, MAX_VALUES)
    except yaml.constructor.ConstructorError as error:
        raise UnsupportedError(f"{path}: {str(error.problem)[:100]}; only plain values are read") from None
    except RecursionError:
        raise QuarlError(f"{path} is nested too deeply to be a configuration") from None
    except (yaml.YAMLError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise QuarlError(f"{path} is not YAML: {reason}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise QuarlError(f"{path} holds a {type(document).__name__}, not settings by name")
    return document


def _count(value: Any, budget: int) -> int:
    """The budget left after `value`; raises where aliases make more of a small file than any user wrote."""
    if budget <= 0:
        raise ValueError(f"more than {MAX_VALUES} values")
    if isinstance(value, int) and value.bit_length() > 64:  # 1:59:59:59... is one number, too long even to print
        raise ValueError("a number has more than 64 bits")
    children = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for child in children:
        budget = _count(child, budget - 1)
    return budget


def _document(path: Path) -> dict[str, Any]:
    return read_yaml(path) if path.exists() else {}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise QuarlError(f"cannot list {folder}: {error.strerror}") from None


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:20]) or "nothing"
    return shown + (", ..." if len(names) > 20 else "")
