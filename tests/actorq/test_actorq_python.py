"""`quarl.actorq`: the verb's options as keywords, the verb's files, and ends that a script notices."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quarl
from quarl.commands.actorq_run import KEYWORDS
from quarl.config import ActorQConfig

SCRIPT = """
import os, pathlib, signal, threading, time
import quarl
from quarl.files import read_rows
SMALL = {"params": {"learning_starts": 200}, "net_arch": [8], "actors": 1, "preset": "none"}
def interrupt():
    while not any(row["timesteps"] for row in read_rows(pathlib.Path("out/metrics.jsonl"))):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
if GUARD:
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        quarl.actorq("CartPole-v1", n_timesteps=10**7, eval_freq=0, output="out", **SMALL)
    except KeyboardInterrupt:
        steps = max(row["timesteps"] for row in read_rows(pathlib.Path("out/metrics.jsonl")))
        run = quarl.actorq("CartPole-v1", n_timesteps=steps, resume=True, output="out")
        print(run.agent, run.summary.timesteps == run.metrics[-1]["timesteps"] > 0, os.path.isfile("out/summary.json"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_ctrl_c_saves_and_raises_and_a_missing_guard_is_one_line(tmp_path, guarded):
    (tmp_path / "script.py").write_text(SCRIPT.replace("GUARD", "__name__ == '__main__'" if guarded else "True"))
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.stdout == ("Agent(dqn CartPole-v1, fp32, 4-8-2, 48 weights) True True\n" if guarded else ""), ran.stderr
    is_named = ran.stderr.rstrip().endswith('put its code under if __name__ == "__main__":')
    assert (ran.returncode, is_named) == ((0, False) if guarded else (1, True))


def test_types_for_editors_are_the_options_of_the_verb():
    stub = ast.parse((Path(quarl.__file__).parent / "__init__.pyi").read_text())
    (typed,) = [node.args for node in stub.body if isinstance(node, ast.FunctionDef)]
    defaults = map(ast.literal_eval, (*typed.defaults, *typed.kw_defaults))
    found = dict(zip([each.arg for each in (*typed.args, *typed.kwonlyargs)], defaults, strict=True))
    assert found.pop("progress") is False
    assert found == {name: getattr(ActorQConfig, name) for name in KEYWORDS} | {"output": "quarl-actorq"}
