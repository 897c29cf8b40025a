"""Agents on the Hugging Face hub: fetching files that QuaRL reads into the hub's own cache.

RL Zoo's `push_to_hub` writes a repository ALGO-ENV with ALGO-ENV.zip, config.yml, args.yml, env_kwargs.yml and, if
observations were normalized, vec_normalize.pkl, all in its top folder. Beside them are videos, metrics and the unpacked
zip. Fetched files are data: the same readers open them as local files.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from logging import ERROR
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError, first_line
from quarl.inert.zip import escapes

PREFIX = "hub:"
"""Prefix of a model on the hub: hub:ORG/NAME, or hub:ORG/NAME/FILE."""
BESIDE = ("config.yml", "args.yml", "vec_normalize.pkl", "vecnormalize.pkl")
"""Files that are fetched with an agent."""
STATISTICS = ("*vec*.pkl", "*norm*.pkl", "*stats*.pkl")
"""Patterns of files that may be its statistics. Any other pickle is left out: it may be a replay buffer of
gigabytes."""
METRICS = "train_eval_metrics.zip"
EXAMPLE = "hub:sb3/ppo-CartPole-v1"


@functools.lru_cache
def fetch(repo_id: str, cache: Path | None = None) -> Path:
    """Fetch the zip of the repository ORG/NAME, or its file ORG/NAME/FILE, and return its path.

    The settings beside it are fetched too.

    cache: folder in which huggingface_hub keeps fetched files; None for its own, which HF_HUB_CACHE can move. Without a
    connection, or with HF_HUB_OFFLINE=1, the cached files are used.
    """
    parts = repo_id.split("/", 2)
    repo, file = "/".join(parts[:2]), "/".join(parts[2:])
    if len(parts) < 2 or not all(parts) or (file and escapes(file)):
        raise QuarlError(f"{PREFIX}{repo_id} is not a repository of the hub; write hub:ORG/NAME, as in {EXAMPLE}")
    return _agent(_snapshot(repo, file or "*.zip", cache), repo, file)


def _snapshot(repo: str, wanted: str, cache: Path | None) -> Path:
    """Return the folder of the repository's newest files that match `wanted` or describe the training of the agent."""
    below = ["*/*"] if "/" not in wanted else []  # patterns match across slashes
    with _reached(repo) as hub:
        from huggingface_hub.utils.tqdm import tqdm

        untyped: Any = tqdm

        class Bar(untyped):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{"disable": None, **kwargs})  # None: shown on a terminal only

        patterns = {"allow_patterns": [wanted, *BESIDE, *STATISTICS], "ignore_patterns": [METRICS, *below]}
        return Path(hub.snapshot_download(repo, cache_dir=cache, tqdm_class=Bar, **patterns))


@contextlib.contextmanager
def _reached(repo: str) -> Iterator[Any]:
    """Yield huggingface_hub, and turn its errors into one line that names the repository."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
        from huggingface_hub.utils import logging
    except ImportError:
        raise QuarlError(f"{PREFIX}{repo} needs an extra: pip install 'quarl[hub]'") from None
    level = logging.get_verbosity()
    logging.set_verbosity(ERROR)  # the error below reports the failure in one line
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield huggingface_hub
            return
    except errors.GatedRepoError:
        cause = "it is gated: ask for access on its page and log in with `hf auth login`"
    except errors.RepositoryNotFoundError:
        cause = "there is no such repository, or it is private; check the name"
    except errors.LocalEntryNotFoundError:
        switch = "it is switched off (HF_HUB_OFFLINE)" if huggingface_hub.is_offline_mode() else "it cannot be reached"
        cause = f"{switch}, and the cache has no whole copy; fetch it once with a connection"
    except errors.HFValidationError:
        cause = f"that is not a valid repository name; write hub:ORG/NAME, as in {EXAMPLE}"
    except Exception as error:  # HTTP, TLS, proxies, disks: a transfer fails in many ways
        cause = first_line(error)[:150]
    finally:
        logging.set_verbosity(level)
    raise QuarlError(f"cannot fetch {repo} from the hub: {cause}")


def _agent(folder: Path, repo: str, file: str) -> Path:
    """Return the requested file; otherwise the only zip, or the one named after the repository if there are several."""
    zips = sorted(path.name for path in folder.glob("*.zip") if path.name != METRICS)
    listed = ", ".join(zips[:10]) + (", ..." if len(zips) > 10 else "") or "no zip"
    standard = f"{repo.partition('/')[2]}.zip"
    if file and not (folder / file).is_file():
        raise QuarlError(f"the repository {repo} has no file {file}; it has {listed}")
    if not file and not zips:
        raise QuarlError(f"the repository {repo} has no zip of a Stable-Baselines3 agent; compare {EXAMPLE}")
    if not file and len(zips) > 1 and standard not in zips:
        raise QuarlError(f"the repository {repo} has {listed}; name one, as in {PREFIX}{repo}/{zips[0]}")
    return folder / (file or (standard if standard in zips else zips[0]))
