"""The examples in the docstrings of what the package offers, run on a real agent: what they print is so."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
import stable_baselines3
import torch

import quarl
from quarl import qat
from quarl.evaluation import Evaluation
from quarl.post_training.table import PtqTable
from quarl.quant.spec import QatSpec, QuantSpec

MODULES = ("quarl", "quarl.api", "quarl.errors", "quarl.evaluation", "quarl.quant.spec", "quarl.qat")
MODULES += ("quarl.post_training.table", "quarl.qat.convert", "quarl.qat.delay", "quarl.qat.prepare", "quarl.actorq")


@pytest.fixture(scope="module")
def named(agents, tmp_path_factory):
    """A folder with the file that examples load, and what they name."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(agents / "sb3" / "dqn" / "CartPole-v1_1" / "CartPole-v1.zip", folder)
    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, seed=0)
    qat.prepare(model, "w4a8")
    model.learn(256, callback=qat.QuantDelay(128))
    agent = quarl.load(folder / "CartPole-v1.zip")
    table = quarl.ptq(agent, precisions=[8, 2], episodes=20)
    names = {"quarl": quarl, "qat": qat, "agent": agent, "model": model, "table": table}
    return folder, names | {"torch": torch, "gymnasium": gymnasium, "stable_baselines3": stable_baselines3}


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_they_say(module, named, monkeypatch):
    folder, names = named
    monkeypatch.chdir(folder)
    tested = doctest.testmod(importlib.import_module(module), extraglobs=names, optionflags=doctest.REPORT_NDIFF)
    assert tested.attempted > 0
    assert tested.failed == 0


def test_all_that_the_package_offers_has_an_example():
    offered = [getattr(quarl, name) for name in quarl.__all__]
    offered += [Evaluation, PtqTable, PtqTable.to_pandas, PtqTable.verdicts.fget, QuantSpec.parse, QatSpec.parse]
    offered += [qat, qat.prepare, qat.QuantDelay, qat.convert]
    offered += [each for name, each in inspect.getmembers(quarl.Agent, inspect.isroutine) if not name.startswith("_")]
    assert [each.__name__ for each in offered if ">>> " not in inspect.getdoc(each)] == []


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module and of its classes whose names begin with no underscore."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from public_functions(node.body)


@pytest.mark.slow
def test_public_functions_have_docstrings():
    trees = [ast.parse(path.read_text()) for path in Path(quarl.__file__).parent.rglob("*.py")]
    lines = [len((ast.get_docstring(one) or "").splitlines()) for tree in trees for one in public_functions(tree.body)]
    assert sum(lines) / len(lines) >= 1.49
