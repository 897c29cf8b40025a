"""What RL Zoo folders say about an agent: where its zip is, its environment, wrappers and observation statistics.

Layout: FOLDER/ALGO/ENV_1/ENV.zip with FOLDER/ALGO/ENV_1/ENV/{config.yml,args.yml,vecnormalize.pkl} beside it. What was
pushed to the hub without the zoo, or saved by hand, is a zip with vec_normalize.pkl or vecnormalize.pkl beside it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl import literals
from quarl.errors import QuarlError, printable
from quarl.inert.yaml import read_yaml
from quarl.policy.operators import Normalize
from quarl.readers import hub, statistics
from quarl.readers.actor import LAYOUTS, ON_POLICY
from quarl.readers.normalizer import read_vecnormalize

NONE = "none"
"""What stands for no statistics where a file of them may be named."""
MAX_FRAMES = 1_000
"""Of a stack: numbers out of a file are of a size."""
_SAMPLED = re.compile(r"NoFrameskip-|^ALE[/-]|^(MiniGrid|BabyAI)-")
VEC_FRAME_STACK = "stable_baselines3.common.vec_env.VecFrameStack"
PREPROCESSING: dict[str, Any] = {
    "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
    "frame_stack": 4,
}
"""Of Atari games, whatever is tuned for them."""
BESIDE = (*hub.BESIDE, statistics.RUNNING)
"""Files beside an agent on which its actions may depend; one of them makes a folder one of settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The training environment of an agent, as far as its folder tells."""

    env_id: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Outermost last."""
    normalize: Normalize | None = None
    """Of the wrapped environment's raw observation, before frame stacking."""
    statistics: str = ""
    """Where `normalize` is from, or why there is none."""


def find(folder: str | Path, algo: str, env_id: str) -> Path:
    """The file of the latest run of `algo` on `env_id` under `folder`, as the zoo's own scripts choose it."""
    env = folder_name(env_id)
    runs = Path(folder) / algo
    if not runs.is_dir():
        found = [path.name for path in _entries(Path(folder)) if path.is_dir()]
        raise QuarlError(f"no folder {runs}; {folder} has {_listed(found)}")
    numbered = numbered_runs(runs, env_id)
    if not numbered:
        for suffix in (".zip", ".pkl"):  # the zoo of Stable-Baselines 2 has no folders of runs
            if (runs / f"{env}{suffix}").is_file():
                return runs / f"{env}{suffix}"
        names = {re.sub(r"_[0-9]+$", "", path.name) for path in _entries(runs)}
        raise QuarlError(f"no agent for {env_id} in {runs}; it has {_listed(sorted(names))}")
    return find_in_run(numbered[max(numbered)])


def numbered_runs(folder: Path, env_id: str) -> dict[int, Path]:
    """The folders ENV_1, ENV_2, ... in `folder`, by number."""
    pattern = re.compile(rf"{re.escape(folder_name(env_id))}_([0-9]+)")
    matches = ((pattern.fullmatch(path.name), path) for path in _entries(folder))
    return {int(match[1]): path for match, path in matches if match and path.is_dir()}


def folder_name(env_id: str) -> str:
    """What files and folders of an environment are called, as in the zoo: its id without the module that registers
    it, with dashes for slashes."""
    return env_id.rpartition(":")[2].replace("/", "-")


def find_in_run(run: Path) -> Path:
    """The zip in one run's folder: ENV.zip, or best_model.zip where training did not reach its end."""
    env = re.sub(r"_[0-9]+$", "", run.resolve().name)
    for name in (f"{env}.zip", "best_model.zip"):
        if (run / name).is_file():
            return run / name
    zips = [path.name for path in _entries(run) if path.suffix == ".zip"]
    others = f"name one of its files: {_listed(zips)}" if zips else f"agents in it are named by ALGO ENV -f {run}"
    raise QuarlError(f"{run} has neither {env}.zip nor best_model.zip; {others}")


def read_settings(model: Path, normalize: str | Path | None = None) -> Settings:
    """What lies beside the agent `model` in the zoo's layout, or statistics alone; empty settings where nothing does.

    normalize: as of `load.read`.
    """
    stats = settings_folder(model)
    file, reason = find_statistics(model, normalize)
    operator = read_vecnormalize(file) if file else None
    reason = str(file) if operator else f"{file} normalises rewards only" if file else reason
    common: dict[str, Any] = {"normalize": operator, "statistics": printable(reason)}
    if stats is None:
        named = _environment(model.stem)
        return Settings(env_id=named if re.search(r"-v[0-9]+$", named) else "", **common)
    config = _document(stats / "config.yml")
    args = _document(stats / "args.yml")
    named = _environment(stats.name) if stats != model.parent else ""
    return Settings(
        env_id=_text(args.get("env") or named, stats / "args.yml", "env"),
        env_kwargs=_mapping(args.get("env_kwargs") or config.get("env_kwargs"), stats / "args.yml", "env_kwargs"),
        wrappers=wrappers_of(config, stats / "config.yml"),
        **common,
    )


def find_statistics(model: Path, normalize: str | Path | None = None) -> tuple[Path | None, str]:
    """(the file of the statistics that `model` observed with, or None; why there is none, if anything says so).

    The run's own config.yml and args.yml decide first, then what lies beside the agent; `normalize` before all.
    """
    if normalize is not None:
        return (None, "as asked") if str(normalize) == NONE else (Path(normalize), "")
    folder = settings_folder(model)
    wanted, document = _wanted(model, folder)
    if wanted is not None and not wanted:
        return None, f"{document} says normalize: false"
    found = statistics.choose(model, [path for path in (folder, *_folders(model)) if path is not None])
    if found is None and wanted and vecnormalize_options(wanted, document).get("norm_obs", True):
        missing = (folder or model.parent) / "vecnormalize.pkl"
        raise QuarlError(
            f"no file {missing}, but {document.name} says that observations were normalised; copy it there, or say "
            "--normalize FILE"
        )
    return found, ""


def _wanted(model: Path, folder: Path | None) -> tuple[Any, Path]:
    """(what the run's documents say of VecNormalize, None where nothing; the document that does)."""
    places = dict.fromkeys((folder or model.parent, model.parent))
    for path in (place / name for place in places for name in ("config.yml", "args.yml")):
        # Alone beside the agent, it may be anything's.
        with contextlib.nullcontext() if path.parent == folder else contextlib.suppress(QuarlError):
            said = _document(path)
            given = _mapping(said.get("hyperparams"), path, "hyperparams")  # to the zoo's scripts
            value = said.get("normalize", given.get("normalize"))
            if isinstance(value, bool | Mapping) or (value is not None and path.name == "config.yml"):
                return value, path
    return None, model


def settings_folder(model: Path) -> Path | None:
    """The folder of config.yml, args.yml and vecnormalize.pkl beside the zip `model`; None where there is none.

    In a repository of the Hugging Face hub they lie in the zip's own folder, and a folder called after the zip holds
    the zip unpacked.
    """
    if (model.parent / "config.yml").is_file() and (model.parent / "args.yml").is_file():
        return model.parent
    return next((folder for folder in _folders(model) if any((folder / name).is_file() for name in BESIDE)), None)


def _folders(model: Path) -> list[Path]:
    """Where a run of the zoo has what lies beside its agent: the folder called after the zip, or after the run."""
    run = re.sub(r"_[0-9]+$", "", model.resolve().parent.name)
    return [model.parent / name for name in (model.stem, run)]


def samples_actions(algo: str, env_id: str) -> bool:
    """True where the zoo evaluates with sampled actions (`enjoy.py`): Atari and MiniGrid.

    Never for value-based agents: there it means epsilon-greedy, which is no property of the network.
    """
    return LAYOUTS[algo] is ON_POLICY and bool(_SAMPLED.search(env_id))


def _environment(name: str) -> str:
    """The environment that a file or folder is called after, as ENV or, on the hub, ALGO-ENV."""
    return re.sub(rf"^({'|'.join(LAYOUTS)})-", "", name)


def vecnormalize_options(normalize: Any, path: Path) -> Mapping[str, Any]:
    """VecNormalize's arguments: true, {...}, or either of the zoo's two spellings of a dict as text."""
    if isinstance(normalize, bool | Mapping):
        return normalize if isinstance(normalize, Mapping) else {}
    with contextlib.suppress(ValueError):
        options = literals.read(str(normalize))
        if isinstance(options, dict):
            return options
    raise QuarlError(f"{path}: normalize is {str(normalize)[:60]!r}; write true, false or a dict of plain values")


def wrappers_of(config: Mapping[str, Any], path: Path) -> tuple[tuple[str, Mapping[str, Any]], ...]:
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
    if type(stack) is not int or not 0 <= stack <= MAX_FRAMES:
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
