"""Options that were removed: saved runs and studies may still name them with some values, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl.config import ActorQConfig, TrainConfig
from quarl.config.learner_options import completed, options_of
from quarl.errors import QuarlError
from quarl.lab.file import read
from quarl.lab.plan import plan
from quarl.quant.spec import QatSpec
from quarl.removed import REMOVED

OTHERS = {"qat_ranges": "lsq", "qat_affine": True, "qat_per_tensor": 0, "ranges": ["lsq"], "symmetric": False}
OTHERS |= {"per_channel": None, "max_times_sampled": 8, "vec_env": "native"}
CHECKPOINTS = ("ranges", "symmetric", "per_channel")


def of_run(config: type[Any]) -> Callable[[dict[str, Any], Path], Any]:
    return lambda options, folder: completed(config(), options_of(config(seed=7)) | options, folder / "args.yml").seed


def of_checkpoint(options: dict[str, Any], folder: Path) -> Any:
    return QatSpec.from_json(QatSpec.parse("w4a8").to_json() | options).precision


def of_study(method: str) -> Callable[[dict[str, Any], Path], Any]:
    def cells(options: dict[str, Any], folder: Path) -> Any:
        file = folder / "study.yml"
        named = "".join(f", {name}: {'null' if value is None else value}" for name, value in options.items())
        entry = f"{{method: {method}, precision: int8{named}}}"
        policy = "{algo: dqn, env: CartPole-v1, source: train, n_timesteps: 500}"
        file.write_text(f"policies:\n  - {policy}\nmethods:\n  - {{method: fp32}}\n  - {entry}\n")
        return [cell.title for cell in plan(read(str(file)))]

    return cells


READERS = {"train": of_run(TrainConfig), "actorq": of_run(ActorQConfig), "checkpoint": of_checkpoint}
READERS |= {"study": of_study("qat"), "actorq-study": of_study("actorq")}


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("kind", READERS)
def test_removed_options_are_read_with_their_kept_values_alone(kind: str, name: str, tmp_path: Path):
    before = READERS[kind]({}, tmp_path)
    assert all(READERS[kind]({name: value}, tmp_path) == before for value in REMOVED[name])
    with pytest.raises(QuarlError) as refused:
        READERS[kind]({name: OTHERS[name]}, tmp_path)
    assert f"{name} to {str(OTHERS[name])!r}: this option was removed" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
