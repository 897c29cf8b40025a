"""Refused options and files of every verb: one line that says how to go on, and nothing is written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import networks
import quarl
import require
from quarl.cluster.connection import token_file
from quarl.policy import artifact
from refusals import refused

REFUSED = {
    "actorq --preset none -o out": {
        "--algo ppo": "ppo is on-policy",
        "--actor-precision int9": "actors cannot compute in int9",
        "--engine torch": "torch engine has no integer kernels",
        "--comm-bits 1": "--comm-bits must be 2..32",
        "--distill --actor-precision fp16": "--distill requires integer actors: use --actor-precision int8",
        "--params policy_kwargs:dict(net_arch=[-5])": "dqn cannot be made for CartPole-v1: ",
        "--params gamma:__import__('os')": "is not NAME:VALUE",
        "--params gradient_steps:0": "gradient_steps:0 would train nothing",
        "--params replay_buffer_kwargs:dict(n_steps=3)": "--params replay_buffer_kwargs is not supported",
        "--n-steps 5 --params n_steps:3": "--params n_steps duplicates --n-steps: drop one",
        "--params policy_kwargs:dict(activation_fn=os.abort)": "os.abort, which is not supported",
        "--samples-per-insert 0": "--samples-per-insert must be above 0",
        "--sigma -0.1": "--sigma must not be negative, got -0.1",
        "--env-timeout 0": "--env-timeout must be above 0 seconds, got 0",
        "--max-staleness 1": "--max-staleness 1 would block this run",
        "--algo d4pg --env Pendulum-v1 --params sigma:1.0": "actors explore: use --sigma",
        "--target nan": "--target must be a finite number, got nan",
        "--target 100 --eval-freq 0": "set --eval-freq",
        "--min-actors 3": "--min-actors 3 is more than --actors 2",
        "--algo sac --env Pendulum-v1 --params target_update_interval:8": "SAC's target network moves at every update",
        "--nodes 2": "--nodes and --actors-per-node require --cluster",
        "--cluster local --plan": "--plan measures only this machine: drop --cluster",
    },
    "actorq -o out": {
        "--resume": "no checkpoint in",
        "--algo td3 --preset quarl-2020 --env Pendulum-v1": "--preset quarl-2020 is not available for td3",
    },
    "distill policy.quarl -o out": {
        "--bits fp16": "--bits fp16: distillation is for weights of 2 to 8 bits with integer activations",
        "--budget 999": "--budget is '999'; use a round of 1,000 updates or more, or minutes, as in 10m",
        "--episodes auto --max-episodes 59": "--max-episodes 59 cannot show a loss below 5 %",
        "--resume": "no checkpoint in ",
        "--auto --observations o.npy": "--observations conflicts with --auto, which chooses by return",
    },
    "distill -o out": {
        "bare.quarl --observations few.npy": "observations of 9 states are too few: give 10 or more",
        "bare.quarl --observations two.npz": "two.npz holds 2 arrays: save only the observations",
        "int8.quarl": "is already quantized (int8); give the float policy",
    },
    "ptq policy.quarl": {
        "--auto --max-loss much": "--max-loss is 'much'; use a percentage between 0 and 100, as in 2%",
        "--auto --scheme default naive": "--auto requires a single --scheme, got default naive: keep one",
        "--symmetric-activations": "--symmetric-activations requires --mode static: add that, or drop it",
    },
    "ptq": {
        "int8.quarl": "int8.quarl is already quantized (int8); give the float policy or use quarl eval",
        "policy.quarl -o ptq": "ptq holds results of another.quarl: choose another -o, or remove them",
        "policy.quarl --bits": "--bits requires at least one value, got none",
        "policy.quarl --scheme": "--scheme requires at least one value, got none",
        "policy.quarl --auto --episodes auto": "--episodes auto conflicts with --auto",
        "policy.quarl --energy --energy-country XXX": "codecarbon has no country 'XXX'",
        "policy.quarl --energy-country FRA": "--energy-country requires --energy: add it",
        "policy.quarl --energy --energy-watts 0": "--energy-watts must be above 0, got 0",
    },
    "distill": {
        "policy.quarl -o begun": "begun holds a run (checkpoint-int4.safetensors): continue with --resume",
        "infinite.quarl --env CartPole-v1 -o ptq/there": "NaN or infinity",
    },
    "sweep -o out": {
        "--bits": "--bits requires at least one value, got none",
        "--methods awq": "invalid choice 'awq' for argument '--methods'",
        "--bits 8 4 int8": "--bits 8 and int8 are the same precision: keep one",
        "--minutes -1": "--minutes must not be negative, got -1",
    },
    "robust policy.quarl -o out": {
        "--levels noise:a": "--levels 'noise:a' is not NAME:LEVEL,... with numbers above 0",
        "--levels delay:1.5": "--levels 'delay:1.5' is not NAME:LEVEL,... with numbers above 0, of whole steps",
        "--levels push:1 push:2": "--levels 'push:2' is not NAME:LEVEL,...",
        "--levels masspol:2 --env CartPole-v1": "no parameter 'masspol'; did you mean 'masspole'?; it has gravity, ",
        "--levels control-hz:50 --env CartPole-v1": "control-hz requires MuJoCo with a frame_skip",
        "--episodes 9": "--episodes must be at least 10, below which every verdict is undecided, got 9",
        "--bits int9000": "weight bits must be 2..32, got 9000",
    },
    "robust": {
        "bare.quarl": "the policy does not name the environment it was trained on",
        "": "MODEL is missing: add it before the options, as in quarl robust MODEL",
        "nowhere": "no file nowhere; check the path",
        "int8.quarl": "int8.quarl is already quantized (int8); give the float policy",
    },
    "study": {
        "run": "STUDY is missing: add a study file or the name of an included one",
        "run nowhere.yml": "no study file nowhere.yml",
        "run smoke --minutes -1": "--minutes must not be negative, got -1",
        "run smoke --only ppo/Nowhere-v1": "--only ppo/Nowhere-v1: the study has no such cell; it has ppo/CartPole-v1",
        "run smoke --env-module a:b": "--env-module 'a:b' is not a module name, such as my_module",
        "run smoke --env-module no_such_module": "cannot import 'no_such_module'",
        "run smoke --nodes 2": "--nodes requires --cluster",
        "status out": "no study in out",
        "report out": "no study in out",
    },
    "bench": {
        "latency policy.quarl --runtime": "--runtime requires at least one value, got none",
    },
    "budget": {"policy.quarl --bits": "--bits requires at least one value, got none"},
    "verify": {
        "": "PATH is missing: add it before the options, as in quarl verify quarl-export",
        "a b": "verify got an unexpected argument 'b'",
        "a --calls 9": "--calls requires --prove: add that, or drop it",
        "a --prove --calls 0": "--calls must be 1 to 4,294,967,296, got 0",
        "policy.quarl --episodes -1": "--episodes must not be negative, got -1",
        "nowhere": "no file nowhere; check the path",
    },
    "cluster": {
        "join": "ADDRESS is missing: use IP:PORT of the cluster, as printed by quarl cluster start",
        "join nowhere --token token": "'nowhere' is not a cluster address: use IP:PORT",
        "join 127.0.0.1:1 --token token": "no cluster answers at 127.0.0.1:1 (Connection refused)",
        "join 127.0.0.1:1 --token open": "others may read the cluster's token: chmod 600 open",
        "start --host 0.0.0.0": "--host is '0.0.0.0'; use an IP address of this machine, such as 10.0.0.1",
        "start --host 203.0.113.1": "cannot listen at 203.0.113.1:6379 (Cannot assign",
        "start --port 80": "--port must be between 1024 and 65535, got 80",
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Policies, sound and not, observations that nothing is learned from, folders of other runs, and tokens."""
    folder, bare = tmp_path_factory.mktemp("files"), networks.dense([4, 8, 2])
    artifact.write(networks.cartpole(), folder / "policy.quarl")
    artifact.write(bare, folder / "bare.quarl")
    quarl.Agent(bare).quantize("int8", observations=networks.observations(bare, 64)).save(folder / "int8.quarl")
    ops = [replace(op, weight=np.full(op.weight.shape, 3e38, np.float32)) for op in bare.linear]
    artifact.write(replace(bare, ops=(ops[0], replace(ops[1], inputs=(ops[0].name,)))), folder / "infinite.quarl")
    few = np.zeros((9, 4))
    np.save(folder / "few.npy", few)
    np.savez(folder / "two.npz", a=few, b=few)
    for name in ("ptq/there/quarl.lock", "begun/checkpoint-int4.safetensors"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    (folder / "ptq" / "rows.json").write_text('{"model": "another.quarl"}')
    token_file(folder / "token", make=True)
    token_file(folder / "open", make=True).chmod(0o604)
    return folder


@pytest.mark.parametrize(
    ("words", "line"),
    [(f"{verb} {words}", line) for verb, lines in REFUSED.items() for words, line in lines.items()],
)
def test_a_refusal_is_one_line_and_writes_nothing(words, line, files, monkeypatch, capsys):
    for start, package in (("cluster", "ray"), ("ptq policy.quarl --energy", "codecarbon")):
        if words.startswith(start):
            require.package(package)
    monkeypatch.chdir(files)
    before = sorted(files.rglob("*"))
    assert line in refused(capsys, *words.split())
    assert sorted(files.rglob("*")) == before
