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
        "--algo ppo": "ppo learns on-policy",
        "--algo cmaes": "known: dqn, ddpg, td3, sac, d4pg",
        "--actor-update-interval 0": "--actor-update-interval must be at least 1",
        "--publish-interval 0": "--publish-interval must be at least 1",
        "--actor-precision int9": "actors cannot compute in int9",
        "--actor-precision w8a6": "actors cannot compute in w8a6",
        "--actor-precision eight": "unknown precision",
        "--engine torch": "torch engine has no integer kernels",
        "--comm-bits 1": "--comm-bits must be 2..32",
        "--distill --actor-precision fp16": "--distill is for integer actors: use --actor-precision int8",
        "--net-arch 64,big": "--net-arch '64,big' is not a list",
        "--params policy_kwargs:dict(net_arch=[-5])": "dqn cannot be made for CartPole-v1: ",
        "--params gamma=0.9": "is not NAME:VALUE",
        "--params gamma:__import__('os')": "is not NAME:VALUE",
        "--params gama:0.9": "DQN has no hyper-parameter 'gama'; did you mean 'gamma'",
        "--params qf_arch:[8]": "DQN has no hyper-parameter 'qf_arch'",
        "--params gradient_steps:0": "gradient_steps:0 would train nothing",
        "--params replay_buffer_kwargs:dict(n_steps=3)": "--params replay_buffer_kwargs is not supported",
        "--n-steps 5 --params n_steps:3": "--params n_steps is given by --n-steps too: drop one",
        "--batch-size 64 --params batch_size:32": "--params batch_size is given by --batch-size too",
        "--params seed:1": "DQN has no hyper-parameter 'seed'",
        "--params learning_rate:exp_0.1": "--params: learning_rate is 'exp_0.1'; write a number or lin_NUMBER",
        "--params policy_kwargs:dict(activation_fn=os.abort)": "os.abort, which is not supported",
        "--params learning_starts:soon": "DQN's learning_starts is 'soon', not a whole number",
        "--samples-per-insert 0": "--samples-per-insert must be above 0",
        "--sigma -0.1": "--sigma must not be negative, got -0.1",
        "--env-timeout 0": "--env-timeout must be above 0 seconds, got 0",
        "--max-staleness 1": "--max-staleness 1 would block this run",
        "--algo d4pg --env Pendulum-v1 --params sigma:1.0": "actors explore: use --sigma",
        "--target nan": "--target must be a finite number, got nan",
        "--target 100 --eval-freq 0": "give an --eval-freq",
        "--target 1 --eval-episodes 0": "--target is met in evaluations: give an --eval-freq and --eval-episodes",
        "--min-actors 3": "--min-actors 3 is more than --actors 2",
        "--env CartPol-v1": "did you mean 'CartPole-v1'",
        "--env Pendulum-v1": "dqn on Pendulum-v1 is n/a: dqn needs a discrete action space; use ",
        "--algo sac --env Pendulum-v1 --params target_update_interval:8": "SAC's target network moves at every update",
        "--nodes 2": "--nodes and --actors-per-node are of a cluster: give --cluster, or drop them",
        "--cluster local --plan": "--plan measures this machine alone: drop --cluster",
    },
    "actorq -o out": {
        "--resume": "no checkpoint in",
        "--algo td3 --preset quarl-2020 --env Pendulum-v1": "--preset quarl-2020 is not available for td3",
    },
    "distill policy.quarl -o out": {
        "--bits fp16": "--bits fp16: distillation is for weights of 2 to 8 bits with integer activations",
        "--bits w4": "--bits w4: distillation is for weights of 2 to 8 bits",
        "--bits 4 --edge-bits one": "--edge-bits is 'one'; use 2..16, or same",
        "--updates 0": "--updates must be at least 1",
        "--budget 999": "--budget is '999'; use a round of 1,000 updates or more, or minutes, as in 10m",
        "--budget 0m": "--budget is '0m'; use a round of",
        "--budget ten": "--budget is 'ten'; use a round of",
        "--max-episodes 90": "--max-episodes is the most of --episodes auto: add that, or drop it",
        "--episodes auto --max-episodes 59": "--max-episodes 59 cannot show a loss below 5 %",
        "--resume": "no checkpoint in ",
        "--auto --observations o.npy": "--observations does not go with --auto, which chooses by return",
        "--auto --bits 2": "--bits does not go with --auto, which chooses bits by --max-loss",
        "--max-loss 1%": "--max-loss is for --auto: add that, or drop it",
        "--observations o.npy --env CartPole-v1": "--env is about an environment, and with --observations",
        "--observations nowhere.npy": "no file nowhere.npy; check the path",
    },
    "distill -o out": {
        "bare.quarl --observations shape.npy": "observation is (40, 3), the policy expects (4,)",
        "bare.quarl --observations nan.npy": "the observation holds NaN or infinity",
        "bare.quarl --observations few.npy": "observations of 9 states are too few: give 10 or more",
        "bare.quarl --observations two.npz": "two.npz holds 2 arrays: save the observations alone",
        "bare.quarl --observations words.npy": "only arrays of numbers are read",
        "bare.quarl": "names no environment: name one with --env ID, or give --observations FILE",
        "int8.quarl": "is quantised already (int8); give the float policy",
    },
    "ptq policy.quarl": {
        "--auto --max-loss much": "--max-loss is 'much'; use a percentage between 0 and 100, as in 2%",
        "--auto --max-loss 0": "--max-loss is a percentage between 0 and 100, got 0",
        "--auto --bits 4": "--bits does not go with --auto",
        "--auto --margin 3": "--margin does not go with --auto",
        "--auto --scheme default naive": "--auto takes one --scheme, got default naive: keep one",
        "--max-loss 1%": "--max-loss is for --auto: add that, or drop it",
        "--minimize latency": "--minimize is for --auto",
    },
    "push": {
        "ptq": "say where to: --repo ORG/NAME publishes",
        "ptq --repo me": "--repo is 'me'; use ORG/NAME",
        "ptq --repo me/x --to y": "say where to",
        "--to y": "DIR is missing",
        "ptq --to y --json z.json": "--json is of rows",
        ". --to y": ". is no folder of quarl export or quarl ptq",
        "ptq --rows broken.json --to y": "lack what a card says",
        "ptq --rows torn.json --to y": "torn.json is not JSON",
    },
    "ptq": {
        "int8.quarl": "int8.quarl is quantised already (int8); give the float policy or use quarl eval",
        "policy.quarl -o ptq": "ptq holds results of another.quarl: choose another -o, or remove them",
        "policy.quarl --bits": "--bits needs at least one precision, as in --bits 4",
        "policy.quarl --scheme": "--scheme needs a name, as in --scheme default",
        "policy.quarl --auto --episodes auto": "--episodes auto does not go with --auto",
        "policy.quarl --energy --energy-country XXX": "codecarbon has no country 'XXX'",
        "policy.quarl --energy-country FRA": "--energy-country says how to measure energy: add --energy",
        "policy.quarl --energy --energy-watts 0": "--energy-watts must be above 0, got 0",
        "policy.quarl --energy-watts 5": "--energy-watts says how to measure energy: add --energy",
        "policy.quarl --energy --energy-watts nan": "--energy-watts must be above 0, got nan",
    },
    "distill": {
        "policy.quarl -o begun": "begun holds a run (checkpoint-int4.safetensors): go on with --resume",
        "infinite.quarl --env CartPole-v1 -o ptq/there": "NaN or infinity",
    },
    "sweep -o out": {
        "--bits 1": "2..16",
        "--bits": "--bits and --methods need at least one name each, as in --bits 8 4 --methods ptq qat",
        "--methods awq": "unknown method 'awq'; use ",
        "--algo ppq": "did you mean 'ppo'",
        "-n 100 --quant-delay 100": "not within the run",
        "--margin 0": "--margin",
        "--seeds 0": "--seeds must be at least 1",
        "--bits 8 4 int8": "--bits 8 and int8 are the same precision: name it once",
        "--bits 8 8": "--bits 8 and 8 are the same precision: name it once",
        "--minutes -1": "--minutes must not be negative, got -1",
        "--minutes nan": "--minutes must not be negative, got nan",
    },
    "study": {
        "run": "STUDY is missing: name a file, or one that comes with QuaRL",
        "run nowhere.yml": "no study file nowhere.yml",
        "run smoke --jobs 0": "--jobs must be at least 1",
        "run smoke --minutes -1": "--minutes must not be negative, got -1",
        "run smoke --seed -1": "--seed must be between 0 and 2**32 - 1",
        "run smoke --only ppo/Nowhere-v1": "--only ppo/Nowhere-v1: the study has no such cell; it has ppo/CartPole-v1",
        "run smoke --env-module a:b": "--env-module 'a:b' is no name of a module, as in my_module",
        "run smoke --env-module no_such_module": "cannot import 'no_such_module'",
        "run smoke --nodes 2": "--nodes counts machines of a cluster: name it with --cluster",
        "run smoke --cluster local --nodes 0": "--nodes must be at least 1",
        "status out": "no study in out",
        "report out": "no study in out",
    },
    "bench": {
        "latency policy.quarl --runtime": "--bits and --runtime need at least one name each",
        "actorq --arms": "--arms needs at least one name, as in --arms torch-fp32 int8",
        "mixed-precision --dtypes": "--dtypes needs at least one name, as in --dtypes fp32 bf16",
    },
    "budget": {"policy.quarl --bits": "--bits and --target need at least one name each"},
    "verify": {
        "": "PATH is missing: it stands before the options, as in quarl verify quarl-export",
        "a b": "PATH is one folder or file, got 2 words: a b",
        "policy.quarl --episodes -1": "--episodes must not be negative, got -1",
        "nowhere": "no file nowhere; check the path",
    },
    "cluster": {
        "join": "ADDRESS is missing: IP:PORT of the cluster, as quarl cluster start says it",
        "join nowhere --token token": "'nowhere' is not a cluster address: use IP:PORT",
        "join 127.0.0.1:1 --token token": "no cluster answers at 127.0.0.1:1 (Connection refused)",
        "join 127.0.0.1:1 --token none": "the cluster's token is not in none (No such file",
        "join 127.0.0.1:1 --token open": "others may read the cluster's token: chmod 600 open",
        "start --host 0.0.0.0": "--host is '0.0.0.0'; use an IP of this machine, as in 10.0.0.1",
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
    arrays = {"shape": np.zeros((40, 3)), "nan": np.full((40, 4), np.nan), "few": np.zeros((9, 4))}
    for name, array in (arrays | {"words": np.full((40, 4), "a")}).items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "two.npz", a=arrays["few"], b=arrays["few"])
    for name in ("ptq/there/quarl.lock", "begun/checkpoint-int4.safetensors"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    (folder / "ptq" / "rows.json").write_text('{"model": "another.quarl"}')
    (folder / "broken.json").write_text('{"command": "ptq", "rows": [{"precision": "int8"}]}')
    (folder / "torn.json").write_text("{")
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
