"""Without an optional package: the same options, preprocessing and networks as with it, or a refusal that names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN

import require
from quarl.errors import EXTRAS
from quarl.readers.sb3 import contents

pytestmark = pytest.mark.slow

SCRIPT = """
import importlib, json, os, sys
plan, early = json.loads(sys.argv[1]), sys.argv[2:]
for name in early:
    sys.modules[name] = None  # whoever imports it is told that there is none
from quarl.cli import main
for name in ("quarl.commands.train", "quarl.commands.eval", "quarl.commands.bench", "quarl.latency.network_latency",
             "quarl.lab.methods.updates", "torch._dynamo", "onnxruntime", "ai_edge_litert.interpreter"):
    importlib.import_module(name)
loaded = {name.partition(".")[0] for name in sys.modules if sys.modules[name] is not None}
assert not loaded & {"rl_zoo3", "ale_py", "mujoco", "dm_control", "pybullet", "Box2D", "codecarbon", "huggingface_hub"}
for extra, (modules, commands) in plan.items():
    if process := os.fork():
        assert os.waitpid(process, 0)[1] == 0, extra
        continue
    os.makedirs(extra, exist_ok=True)
    os.chdir(extra)
    sys.modules.update(dict.fromkeys(modules))
    from quarl.lab.methods import updates
    from quarl.latency import timing
    timing.ROUNDS, updates.NUM_FRAMES = 1, 40
    codes = []
    for number, words in enumerate(commands):
        out = os.open(f"{number}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1), os.dup2(out, 2)
        codes.append(main(words))
        sys.stdout.flush()
    with open("codes.json", "w") as file:
        json.dump(codes, file)
    os._exit(0)
"""
"""Imports once, and runs each extra's commands in a fork that has its modules taken away; `early` are missed before."""
PONG = "PongNoFrameskip-v4"
SHORT = ["--eval-freq", "0", "--eval-episodes", "1"]
CARTPOLE = ["train", "-n", "32", "--n-envs", "1", "--params", "n_epochs:1", *SHORT]
GAME = "max_num_frames_per_episode=200"
SMALL = ["--params", "learning_starts:16", "buffer_size:64", f"env_kwargs:dict({GAME})"]
ATARI = ["train", "--algo", "dqn", "--env", PONG, "-n", "24", *SHORT, *SMALL]
AGENT = "logs/ppo/CartPole-v1_1/CartPole-v1.zip"
GAMER = f"logs/dqn/{PONG}_1/{PONG}.zip"
EVERYWHERE = [CARTPOLE, ["eval", AGENT, "--episodes", "2"], ["bench", "latency", "--widths", "8", "--json", "l.json"]]
WITH_ATARI = [
    *EVERYWHERE,
    ATARI,
    ["eval", GAMER, "--episodes", "1"],
]
SUITES = {
    "mujoco": (["mujoco"], "HalfCheetah-v5"),
    "dm-control": (["dm_control"], "dm_control/cartpole-balance-v0"),
    "pybullet": (["pybullet", "pybullet_envs_gymnasium"], "HalfCheetahBulletEnv-v0"),
    "box2d": (["Box2D"], "LunarLander-v3"),
    "atari": (["ale_py", "cv2"], PONG),
}
"""Modules of an extra that brings environments, and one of those."""


def refused(env_id: str) -> list[list[str]]:
    """What cannot be done without the suite of an environment."""
    algo = "sac" if "Cheetah" in env_id or "balance" in env_id else "dqn"
    return [
        ["train", "--algo", algo, "--env", env_id, *SHORT, "-f", "refused"],
        ["eval", AGENT, "--env", env_id],
    ]


REFUSED: Mapping[str, list[list[str]]] = {
    **{extra: refused(env_id) for extra, (_, env_id) in SUITES.items()},
    "tensorboard": [["train", "--track", "tensorboard", "-f", "refused"]],
    "energy": [
        ["train", "--energy", "-f", "refused"],
        ["bench", "latency", "--energy"],
    ],
    "hub": [["eval", "hub:sb3/ppo-CartPole-v1"]],
    "video": [["play", AGENT, "--record", "refused.mp4"], ["play", AGENT, "--record", "refused.gif"]],
}
MODULES = {extra: modules for extra, (modules, _) in SUITES.items()} | {
    "zoo": ["rl_zoo3"],
    "tensorboard": ["tensorboard"],
    "energy": ["codecarbon"],
    "hub": ["huggingface_hub"],
    "video": ["imageio", "imageio_ffmpeg"],
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one for every extra, and "all" for a run with all of them."""
    require.module("ale_py")
    require.module("rl_zoo3")
    folder = tmp_path_factory.mktemp("extras")
    plan = {extra: (modules, [*EVERYWHERE, *REFUSED.get(extra, [])]) for extra, modules in MODULES.items()}
    plan |= {"all": ([], WITH_ATARI), "zoo": (MODULES["zoo"], WITH_ATARI)}
    late = {extra: job for extra, job in plan.items() if extra not in ("atari", "tensorboard")}
    early = {extra: plan[extra] for extra in ("atari", "tensorboard")}
    for jobs, missed in ((late, []), (early, [*MODULES["atari"], *MODULES["tensorboard"]])):
        command = [sys.executable, "-c", SCRIPT, json.dumps(jobs), *missed]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """What the runs in a folder were made of: hyper-parameters, options, shapes of networks, rows without seconds."""
    found: dict[str, Any] = {}
    for agent in (AGENT, GAMER):
        if not (path := folder / agent).is_file():
            continue
        settings = path.with_suffix("")
        found[agent] = {
            "hyper-parameters": (settings / "config.yml").read_text(),
            "options": (settings / "args.yml").read_text(),
            "network": {name: array.shape for name, array in contents(path).state.items()},
        }
    columns = ("network", "engine", "precision", "bytes")
    rows = json.loads((folder / "l.json").read_text())["rows"]
    found["l.json"] = [{column: row.get(column) for column in columns} for row in rows]
    return found


@pytest.mark.parametrize("extra", MODULES)
def test_without_an_extra_runs_are_the_same_or_name_it(extra: str, ran: Path) -> None:
    ours, everything = outcome(ran / extra), outcome(ran / "all")
    if extra != "zoo":
        everything = {name: everything[name] for name in (AGENT, "l.json")}
    assert ours == everything
    codes, refusals = json.loads((ran / extra / "codes.json").read_text()), REFUSED.get(extra, [])
    assert codes == [0] * (len(codes) - len(refusals)) + [2] * len(refusals)
    for number in range(len(codes) - len(refusals), len(codes)):
        said = (ran / extra / f"{number}.txt").read_text()
        assert f"pip install 'quarl[{extra}]'" in said.splitlines()[-1], said
    assert not (ran / extra / "refused" / "dqn").exists()


def test_a_game_is_preprocessed_whether_the_zoo_is_there_or_not(ran: Path) -> None:
    for folder, more in (("all", ""), ("zoo", ", from QuaRL's copy")):
        found = outcome(ran / folder)[GAMER]
        assert found["network"]["q_net.features_extractor.cnn.0.weight"] == (32, 4, 8, 8)
        said = (ran / folder / "3.txt").read_text().splitlines()
        assert f"quarl: hyper-parameters: RL Zoo's for atari{more}" in said
        made = f"{PONG}, {GAME}, AtariWrapper, VecFrameStack(n_stack=4)"
        assert f"quarl: a game of Atari: {made}" in said


LIGHT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import quarl
from quarl.cli import main
from quarl.commands import demo
demo.BITS = ("8",)
agent = quarl.load("agent.zip").quantize("int8", env_id="CartPole-v1", mode="static")
agent.save("agent.tflite")
agent.save("int8.safetensors")
print(quarl.ptq("agent.zip", [8], episodes=2, env_id="CartPole-v1")._repr_html_())
for call in (agent.distill, lambda: agent.save("agent.onnx"), lambda: agent.export("onnx", "no"),
             lambda: agent.predict([0.0] * 4, engine="torch")):
    try:
        call()
    except quarl.QuarlError as error:
        print(error)
for line in sys.stdin.read().splitlines():
    print(main(line.split()), flush=True)
"""
"""Takes the packages away, and prints what Python says and each command's exit code."""
PLAIN = ["eval int8.safetensors --episodes 2", "inspect agent.zip int8.safetensors -o look", "doctor", "envs", "demo"]
PLAIN = ["ptq agent.zip --env CartPole-v1 --bits 8 --episodes auto --max-episodes 60 -o table", *PLAIN]
EXPORTED = [
    "export int8.safetensors --to tflite -o tflite --episodes 10",
    "verify tflite --runtime litert --episodes 10",
]
EXPORTED = [*EXPORTED, "eval tflite/policy.tflite --episodes 2", "export int8.safetensors --to c -o c --episodes 10"]
PLAIN = [*PLAIN, *EXPORTED]
LEARNING = ["train", "actorq", "study run smoke -o s", "sweep", "distill agent.zip"]
LEARNING = [*LEARNING, "bench latency"]
CLUSTERS = ["cluster start", "cluster join 127.0.0.1:1"]
ONNX = "export int8.safetensors --to onnx -o onnx --episodes 10"
NEEDING = {
    **dict.fromkeys([*LEARNING, "eval int8.safetensors --engine torch"], "train"),
    "study report s": "report",
    **dict.fromkeys(CLUSTERS, "cluster"),
    **dict.fromkeys(["eval int8.safetensors --engine onnx", "inspect agent.onnx", ONNX], "onnx"),
}
"""By command, the extra without which there is nothing to do."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an agent.zip of Stable-Baselines3."""
    folder = tmp_path_factory.mktemp("plain")
    DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, buffer_size=1).save(folder / "agent.zip")
    (folder / "agent.onnx").write_bytes(b"\x08\x07")
    return folder


def test_a_plain_install_plays_quantises_and_inspects_and_names_the_extra_of_the_rest(plain: Path) -> None:
    command, lines = [sys.executable, "-c", LIGHT, " ".join(EXTRAS)], "\n".join([*PLAIN, *NEEDING])
    done = subprocess.run(command, cwd=plain, input=lines, capture_output=True, text=True, check=False)
    codes = [int(line) for line in done.stdout.splitlines() if re.fullmatch(r"\d+", line)]
    assert codes == [0] * len(PLAIN) + [2] * len(NEEDING), done.stderr
    said = done.stderr.splitlines()
    for what, package in (("report", "jinja2"), ("figure", "matplotlib")):
        why = f"a {what} needs {package}: pip install 'quarl[report]'"
        assert f"quarl: no {what} was written ({why}); the run is complete" in said
    assert json.loads((plain / "table" / "rows.json").read_text())["rows"][1]["precision"] == "int8"
    for line, extra in zip(
        done.stdout.splitlines()[1:5], ("train", "onnx", "onnx", "train"), strict=True
    ):  # after no HTML
        assert line.endswith(f": pip install 'quarl[{extra}]'")
    refusals = said[-len(NEEDING) :]
    for refusal, extra in zip(refusals, NEEDING.values(), strict=True):
        assert refusal.endswith(f": pip install 'quarl[{extra}]'")


def test_loading_and_playing_an_agent_imports_no_package_of_an_extra_nor_scipy_stats(plain: Path) -> None:
    script = """
import sys, quarl
from quarl.cli import main
quarl.load("agent.zip").quantize("int8", env_id="CartPole-v1").evaluate(episodes=2, env_id="CartPole-v1")
main("eval agent.zip --env CartPole-v1 --episodes 2".split())
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=plain, capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "quarl.engines.litert" in imported
    assert not imported & {*EXTRAS, "scipy.stats"}


def test_an_extra_brings_each_package_that_its_line_is_said_for() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for package, extra in EXTRAS.items():
        brought = [re.split("[<>=]", each)[0].replace("-", "_") for each in project["optional-dependencies"][extra]]
        assert package in brought
        assert not [each for each in project["dependencies"] if each.replace("-", "_").startswith(package)]
