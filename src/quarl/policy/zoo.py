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
from quarl.errors import QuarlError
from quarl.policy import hub
from quarl.policy.actor import LAYOUTS, ON_POLICY
from quarl.policy.normalizer import read_running, read_vecnormalize
from quarl.policy.operators import Normalize
from quarl.policy.plain_yaml import read_yaml

MAX_FRAMES = 1_000
"""Of a stack: numbers out of a file are of a size."""
_CHECKPOINT = re.compile(r"(.*)_([0-9]+_steps)\.zip")
_SAMPLED = re.compile(r"NoFrameskip-|^ALE[/-]|^(MiniGrid|BabyAI)-")
VEC_FRAME_STACK = "stable_baselines3.common.vec_env.VecFrameStack"
BESIDE = (*hub.BESIDE, "obs_rms.pkl")
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


def read_settings(model: Path) -> Settings:
    """What lies beside the zip `model` in the zoo's layout, or statistics alone; empty settings where nothing does."""
    stats = settings_folder(model)
    if stats is None:
        named, path = _environment(model.stem), statistics_file(None, model)
        return Settings(
            env_id=named if re.search(r"-v[0-9]+$", named) else "",
            normalize=read_vecnormalize(path) if path.is_file() else None,
        )
    config = _document(stats / "config.yml")
    args = _document(stats / "args.yml")
    named = _environment(stats.name) if stats != model.parent else ""
    return Settings(
        env_id=_text(args.get("env") or named, stats / "args.yml", "env"),
        env_kwargs=_mapping(args.get("env_kwargs") or config.get("env_kwargs"), stats / "args.yml", "env_kwargs"),
        wrappers=wrappers_of(config, stats / "config.yml"),
        normalize=_statistics(config, stats, model),
    )


def settings_folder(model: Path) -> Path | None:
    """The folder of config.yml, args.yml and vecnormalize.pkl beside the zip `model`; None where there is none.

    In a repository of the Hugging Face hub they lie in the zip's own folder, and a folder called after the zip holds
    the zip unpacked.
    """
    if (model.parent / "config.yml").is_file() and (model.parent / "args.yml").is_file():
        return model.parent
    run = re.sub(r"_[0-9]+$", "", model.resolve().parent.name)
    folders = (model.parent / name for name in (model.stem, run))
    return next((folder for folder in folders if any((folder / name).is_file() for name in BESIDE)), None)


def own_statistics(model: Path) -> Path:
    """Where statistics lie that belong to the zip `model` and to no other of its run."""
    return model.with_name(f"{model.stem}_vecnormalize.pkl")


def statistics_file(stats: Path | None, model: Path) -> Path:
    """The file of the statistics that the zip `model` observed with, whether it is there or not.

    Stable-Baselines3's CheckpointCallback puts PREFIX_vecnormalize_N_steps.pkl beside PREFIX_N_steps.zip.

    Its own where it has some, for those of the settings folder `stats` are the newest agent's. None: there is no such
    folder, and what lies in the zip's is the zip's; among several agents nothing says which of them observed with it,
    so that is refused: to go without statistics, or with another's, changes actions silently.
    """
    for own in (own_statistics(model), model.with_name(_CHECKPOINT.sub(r"\1_vecnormalize_\2.pkl", model.name))):
        if own.is_file() and own != model:
            return own
    pushed = (stats or model.parent) / "vec_normalize.pkl"  # as it is called on the hub
    found = pushed if pushed.is_file() else pushed.with_name("vecnormalize.pkl")
    if stats is None and found.is_file():
        agents = (path for path in _entries(model.parent) if path.suffix == model.suffix and path.is_file())
        others = [path.name for path in agents if path.name not in (model.name, found.name, hub.METRICS)]
        if others:
            raise QuarlError(
                f"{found} lies beside {_listed(others)} too, so whose it is is not known: call it "
                f"{own_statistics(model).name}, or move {model.name} to a folder of its own"
            )
    return found


def samples_actions(algo: str, env_id: str) -> bool:
    """True where the zoo evaluates with sampled actions (`enjoy.py`): Atari and MiniGrid.

    Never for value-based agents: there it means epsilon-greedy, which is no property of the network.
    """
    return LAYOUTS[algo] is ON_POLICY and bool(_SAMPLED.search(env_id))


def _environment(name: str) -> str:
    """The environment that a file or folder is called after, as ENV or, on the hub, ALGO-ENV."""
    return re.sub(rf"^({'|'.join(LAYOUTS)})-", "", name)


def _statistics(config: Mapping[str, Any], stats: Path, model: Path) -> Normalize | None:
    """vecnormalize.pkl where config.yml asks for it, or where there is no config.yml to ask.

    The zoo of Stable-Baselines 2 had obs_rms.pkl instead, with the wrapper's default epsilon and clip.
    """
    path, running = statistics_file(stats, model), stats / "obs_rms.pkl"
    wanted = config.get("normalize", False) if config else path.is_file() or running.is_file()
    if not wanted:
        return None
    if path.is_file():
        return read_vecnormalize(path)
    if running.is_file() and vecnormalize_options(wanted, stats / "config.yml").get("norm_obs", True):
        return read_running(running)
    if not vecnormalize_options(wanted, stats / "config.yml").get("norm_obs", True):
        return None
    raise QuarlError(f"no file {path}, but config.yml says that observations were normalised; copy it there")


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
