"""A learner goes on from a checkpoint as if nothing had happened, and no fault loses the last sound one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import safetensors.numpy
import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl import checkpoint_file, files
from quarl.actorq.replay import SegmentReplay
from quarl.errors import QuarlError
from quarl.runs import checkpoint, checkpoint_model
from quarl.runs.checkpoint import CheckpointError
from quarl.runs.checkpoint_model import take
from results import read
from sb3_archives import Still
from waiting import PATIENCE_S

STEPS = ("put", "sync", "rename", "sync_folder")


CONTINUOUS = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(3)


def still(action_space, name=None):
    """Spaces and a name, and nothing that happens."""
    env = Still(gymnasium.spaces.Box(-1, 1, (4,), np.float32), action_space)
    env.spec = gymnasium.envs.registration.EnvSpec(name) if name else None
    return env


def build(cls=DQN, seed=0, hidden=16, env=None, **kwargs):
    """A model whose clocks run; nothing trained."""
    model = cls(
        "MlpPolicy",
        env or still(DISCRETE if cls is DQN else CONTINUOUS),
        seed=seed,
        learning_rate=lambda progress: 1e-2 * progress,
        buffer_size=64,
        replay_buffer_class=SegmentReplay,
        replay_buffer_kwargs={"n_steps": 3},
        policy_kwargs={"net_arch": [hidden]},
        device="cpu",
        **({"target_update_interval": 5} if cls is DQN else {}),
        **kwargs,
    )
    model._setup_learn(200)
    return model


def go_on(model, steps):
    """Environment steps with random actions, each with SB3's clocks and one update."""
    for _ in range(steps):
        row = np.zeros(1, model.replay_buffer.segment_dtype)
        row["sequence"], row["action"], row["reward"] = (
            model.num_timesteps,
            model.action_space.sample(),
            random.random(),
        )
        row["observation"], row["next_observation"] = np.random.uniform(-1, 1, (2, 1, 4))
        row["terminated"] = random.random() < 0.1
        model.replay_buffer.insert(row)
        model.num_timesteps += 1
        model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
        model._on_step()
        model.train(gradient_steps=1, batch_size=8)
    return model


def stamped(model, updates):
    """The model, recognisable by its clock and by every weight."""
    model._n_updates = updates
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.fill_(updates)
    return model


def equal(one, other):
    """The same facts and, bit for bit, the same arrays."""
    return (
        one[0] == other[0]
        and one[1].keys() == other[1].keys()
        and all(a.dtype == (b := other[1][name]).dtype and a.tobytes() == b.tobytes() for name, a in one[1].items())
    )


@pytest.mark.parametrize("cls", [DQN, TD3, SAC, DDPG])
def test_training_after_restore_equals_training_without_a_break_bit_for_bit(tmp_path, cls):
    model = go_on(build(cls), 21)  # odd: TD3's delayed actor and DQN's target are in the middle of their periods
    checkpoint.save(tmp_path, model, {"clock_s": 0.1}, replay=model.replay_buffer)
    go_on(model, 12)
    other = go_on(build(cls, seed=5), 9)
    found = checkpoint.load_latest(tmp_path)
    checkpoint.restore(found, other, other.replay_buffer)
    assert (found.updates, found.state, found.has_replay, found.warnings) == (21, {"clock_s": 0.1}, True, ())
    assert not equal(take(model), take(other))
    go_on(other, 12)
    assert equal(take(model), take(other))
    assert other.num_timesteps == 33


def test_sac_with_a_fixed_entropy_coefficient_comes_back(tmp_path):
    model = go_on(build(SAC, ent_coef=0.25), 3)
    checkpoint.save(tmp_path, model, {})
    other = build(SAC, ent_coef=0.5)
    checkpoint.restore(checkpoint.load_latest(tmp_path), other)
    assert other.ent_coef_tensor.item() == 0.25


def test_every_generator_goes_on_where_it_was(tmp_path):
    def draw():
        normal = (random.gauss(0, 1), np.random.normal(), torch.randn(1).item())
        return *normal, random.random(), np.random.random(), torch.rand(1).item(), model.action_space.sample().tolist()

    model = build(TD3)
    random.seed(1), np.random.seed(2), torch.manual_seed(3), model.action_space.seed(4)
    draw()  # leaves the second half of a pair of normal numbers in two of them
    checkpoint.save(tmp_path, model, {})
    expected = [draw() for _ in range(3)]
    checkpoint.restore(checkpoint.load_latest(tmp_path), model)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.SFC64, np.random.Philox])
def test_an_action_space_may_have_any_of_numpys_generators(tmp_path, generator):
    model = build()
    model.action_space._np_random = np.random.Generator(generator(3))
    checkpoint.save(tmp_path, model, {})
    expected = [model.action_space.sample() for _ in range(9)]
    checkpoint.restore(checkpoint.load_latest(tmp_path), model)
    assert [model.action_space.sample() for _ in range(9)] == expected


def test_statistics_of_vecnormalize_come_back(tmp_path):
    def normalized():
        return build(env=VecNormalize(DummyVecEnv([lambda: still(DISCRETE)])))

    model = normalized()
    for rms, shape in ((model.env.obs_rms, (5, 4)), (model.env.ret_rms, (5,))):
        rms.update(np.random.default_rng(0).normal(2, 3, shape))
    checkpoint.save(tmp_path, model, {})
    other = normalized()
    checkpoint.restore(checkpoint.load_latest(tmp_path), other)
    for name in ("obs_rms", "ret_rms"):
        mine, theirs = getattr(model.env, name), getattr(other.env, name)
        assert np.array_equal(mine.mean, theirs.mean)
        assert np.array_equal(mine.var, theirs.var)
        assert (mine.count, type(mine.count)) == (theirs.count, type(theirs.count))
    with pytest.raises(QuarlError, match=r"obs_rms/count is float64 \(\) there and missing in this run"):
        checkpoint.restore(checkpoint.load_latest(tmp_path), build())


def test_a_checkpoint_is_safetensors_and_json(tmp_path):
    model = go_on(build(), 10)
    path = checkpoint.save(tmp_path, model, {"limiter": {"inserts": np.int64(3)}}, replay=model.replay_buffer)
    assert path == tmp_path / "checkpoint-0000000010.safetensors"
    arrays = safetensors.numpy.load_file(path)
    assert np.array_equal(arrays["policy/q_net.q_net.0.weight"], model.q_net.q_net[0].weight.detach().numpy())
    assert np.array_equal(arrays["replay/reward"], model.replay_buffer.columns["reward"][:10])
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    manifest = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["manifest"])
    assert (manifest["format"], manifest["schema"], manifest["quarl"]) == ("quarl-checkpoint", 1, "0.1.0")
    assert manifest["state"] == {"limiter": {"inserts": 3}}
    assert manifest["tensors"].keys() == arrays.keys()


def test_a_replay_that_was_not_saved_is_left_alone(tmp_path):
    model = go_on(build(), 10)
    checkpoint.save(tmp_path, model, {})
    other = go_on(build(), 4)
    found = checkpoint.load_latest(tmp_path)
    checkpoint.restore(found, other, other.replay_buffer)
    assert not found.has_replay
    assert other.replay_buffer.size() == 4


def test_what_was_loaded_does_not_change_with_the_model(tmp_path):
    model = go_on(build(), 5)
    checkpoint.save(tmp_path, model, {}, replay=model.replay_buffer)
    found = checkpoint.load_latest(tmp_path)
    for _ in range(2):  # twice the same: neither optimiser nor replay writes into the checkpoint's arrays
        checkpoint.restore(found, model, model.replay_buffer)
        facts, arrays = take(model)
        assert {**json.loads(json.dumps(facts)), "random": found.facts["random"]} == found.facts
        assert all(np.array_equal(array, found.arrays[name]) for name, array in arrays.items())
        go_on(model, 5)


def test_the_newest_are_kept_and_the_new_one_is_safe_before_an_old_one_goes(tmp_path, monkeypatch):
    model, trace = build(), []
    for updates in (5, 7, 9):
        checkpoint.save(tmp_path, stamped(model, updates), {})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-0000000007.safetensors", "checkpoint-0000000009.safetensors"]
    for name in STEPS:
        real = getattr(files, name)
        monkeypatch.setattr(files, name, lambda *a, n=name, r=real: (trace.append(n), r(*a))[1])
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **k: (trace.append("unlink"), unlink(path, **k))[1])
    monkeypatch.setattr(checkpoint, "KEPT", 1)
    checkpoint.save(tmp_path, stamped(model, 11), {})
    assert set(trace[:-6]) == {"put"}
    assert trace[-6:] == ["sync", "rename", "sync_folder", "sync", "unlink", "unlink"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-0000000011.safetensors"]


def test_saving_at_the_same_update_replaces_and_going_back_drops_what_came_after(tmp_path):
    model = build()
    for updates, note in ((5, "a"), (7, "b"), (7, "c")):
        checkpoint.save(tmp_path, stamped(model, updates), {"note": note})
    assert checkpoint.load_latest(tmp_path).state == {"note": "c"}
    checkpoint.save(tmp_path, stamped(model, 6), {"note": "d"})
    assert checkpoint.load_latest(tmp_path).state == {"note": "d"}
    assert len(list(tmp_path.iterdir())) == 2


def test_temporary_files_of_dead_writers_are_removed_and_those_of_living_ones_kept(tmp_path):
    dead, living = (tmp_path / f"{checkpoint_file.TEMPORARY}{n}.tmp" for n in (os.getpid() + 1, 1))
    dead.write_bytes(b"half")
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        checkpoint.save(tmp_path, build(), {})
        assert living.exists()
    assert not dead.exists()


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_at_any_step_leaves_the_previous_checkpoint(tmp_path, monkeypatch, step):
    model = build()
    checkpoint.save(tmp_path, stamped(model, 5), {})
    before = (tmp_path / "checkpoint-0000000005.safetensors").read_bytes()
    stamped(model, 6)
    tensors = len(checkpoint.load_latest(tmp_path).arrays)
    real = getattr(files, step)
    calls, last = 0, None

    def full(*args):
        nonlocal calls
        calls += 1
        if calls == last:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args)

    monkeypatch.setattr(files, step, full)
    steps = {"put": tensors + 2, "sync": 2}.get(step, 1)  # the header is written twice; file and folder are synced
    monkeypatch.setattr(checkpoint, "KEPT", 1)
    for last in range(1, steps + 1):
        calls = 0
        with pytest.raises(CheckpointError, match="No space left on device; the files saved before are kept"):
            checkpoint.save(tmp_path, model, {})
        assert (tmp_path / "checkpoint-0000000005.safetensors").read_bytes() == before
        assert not list(tmp_path.glob(f"{checkpoint_file.TEMPORARY}*"))
        after_rename = step == "sync_folder" or (step == "sync" and last == 2)
        assert checkpoint.load_latest(tmp_path).updates == (6 if after_rename else 5)
    calls, last = 0, None
    checkpoint.save(tmp_path, model, {})
    assert calls == steps
    assert len(list(tmp_path.iterdir())) == 1


def test_a_disk_that_is_really_full_leaves_the_previous_checkpoint(tmp_path):
    model = go_on(build(), 10)
    path = checkpoint.save(tmp_path, model, {})
    size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    model._n_updates += 1
    for room in (0, 100, size // 2, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(CheckpointError, match="File too large"):
                checkpoint.save(tmp_path, model, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(tmp_path.iterdir()) == [path]
    assert checkpoint.load_latest(tmp_path).updates == 10


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        checkpoint.save(tmp_path / "file" / "run", build(), {})


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, build(), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_tenth_of_the_chaos_is_survived(tmp_path):
    counts = "--cuts 20 --flips 100 --rebuilt 100 --kills 10 --stride 5 --saves 0 --seed 1"
    command = [sys.executable, "-W", "error", "-m", "stress.chaos.checkpoint", *counts.split()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, "--out", tmp_path], env=environment, check=True, timeout=PATIENCE_S)
    rows = {row["what"]: row for row in read("chaos-checkpoint", root=tmp_path)}
    assert rows["cuts"]["detected"] == 20
    assert rows["flips"]["detected"] == 100
    assert rows["kills"]["loadable"] == 10
    assert rows["kill points"]["loadable"] == rows["kill points"]["tried"] > 15
    assert rows["rebuilt"]["clean"] + rows["rebuilt"]["refused"] == 100


def test_damage_is_named_and_the_checkpoint_before_it_loads(tmp_path):
    model = build()
    old, new = (checkpoint.save(tmp_path, stamped(model, updates), {}) for updates in (5, 6))
    data = new.read_bytes()
    new.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = checkpoint.load_latest(tmp_path)
    assert (found.path, found.updates) == (old, 5)
    (warning,) = found.warnings
    assert warning.startswith(f"{new} is damaged (tensor 'random/torch' does not match its sha256); going back")
    old.write_bytes(b"")
    with pytest.raises(
        QuarlError,
        match=f"all 2 checkpoints in {tmp_path} are damaged; start again in another folder, or without these",
    ):
        checkpoint.load_latest(tmp_path)


def test_a_folder_without_checkpoints_says_what_to_do(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(QuarlError, match=r"no checkpoint in .*; start without --resume"):
            checkpoint.load_latest(folder)


def test_a_newer_schema_is_refused_in_one_line_that_names_both(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, build(), {})
    monkeypatch.setattr(checkpoint_file, "SCHEMA", 2)
    monkeypatch.setattr(checkpoint_file, "version", lambda package: "3.4.5")
    path = checkpoint.save(tmp_path, stamped(build(), 1), {})
    monkeypatch.undo()
    expected = f"{path} has schema 2 and this QuaRL reads schema 1; install QuaRL 3.4.5 or newer"
    with pytest.raises(QuarlError, match=expected):
        checkpoint.load_latest(tmp_path)


def other_optimizer(model):
    model.policy.optimizer = torch.optim.RMSprop(model.policy.parameters())
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(TD3), "its algorithm is DQN and this run's is TD3"),
        (
            lambda: build(env="CartPole-v1"),
            r"its observation space is Box\(-1.0, 1.0, \(4,\), float32\) and this run's is",
        ),
        (
            lambda: build(env=still(gymnasium.spaces.Discrete(4))),
            r"its action space is Discrete\(3\) and this run's is",
        ),
        (
            lambda: build(hidden=8),
            r"q_net.q_net.0.bias is float32 \(16,\) there and float32 \(8,\) in this run; resume",
        ),
        (lambda: other_optimizer(build()), "its policy.optimizer is Adam and this run's is RMSprop"),
    ],
)
def test_a_run_of_another_kind_is_refused_and_left_as_it_was(tmp_path, make, message):
    model = go_on(build(), 5)
    path = checkpoint.save(tmp_path, model, {}, replay=model.replay_buffer)
    other = make()
    facts, arrays = take(other)
    before = facts, {name: array.copy() for name, array in arrays.items()}
    with pytest.raises(QuarlError, match=f"^cannot resume from {path}: .*{message}"):
        checkpoint.restore(checkpoint.load_latest(tmp_path), other, other.replay_buffer)
    assert equal(take(other), before)
    assert other.replay_buffer.size() == 0


def test_another_environment_with_equal_spaces_is_refused_by_its_name(tmp_path):
    checkpoint.save(tmp_path, build(env=still(DISCRETE, "First-v0")), {})
    with pytest.raises(QuarlError, match="its environment is First-v0 and this run's is Second-v0"):
        checkpoint.restore(checkpoint.load_latest(tmp_path), build(env=still(DISCRETE, "Second-v0")))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, value):
    model = go_on(build(TD3), 4)
    path = checkpoint.save(tmp_path, model, {})
    model._n_updates = 5
    model.critic_target.qf1[2].weight.data[0, 3] = value
    for save in (lambda: checkpoint.save(tmp_path, model, {}), lambda: checkpoint.export(tmp_path, model)):
        with pytest.raises(QuarlError, match=r"^critic_target.qf1.2.weight holds NaN or infinity at update 5; nothing"):
            save()
    assert list(tmp_path.iterdir()) == [path]


def test_an_optimizer_that_is_not_finite_is_named_by_its_layer(tmp_path):
    model = go_on(build(SAC), 4)
    model.critic.optimizer.state[model.critic.qf0[2].bias]["exp_avg"][0] = float("nan")
    with pytest.raises(QuarlError, match=r"^the exp_avg in critic.optimizer of critic.qf0.2.bias holds NaN"):
        checkpoint.save(tmp_path, model, {})
    assert not list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    model = build()
    before = checkpoint.export(tmp_path, model).read_bytes()

    def full(file, data):
        file.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "put", full)
    with pytest.raises(CheckpointError, match=r"model.zip: No space left"):
        checkpoint.export(tmp_path, go_on(model, 3))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("model.zip", before)]


def test_the_exported_model_is_stable_baselines3s_own(tmp_path):
    model = go_on(build(DQN), 10)
    path = checkpoint.export(tmp_path / "new", model)
    again = DQN.load(path)
    assert path.name == "model.zip"
    assert [p.name for p in path.parent.iterdir()] == ["model.zip"]
    observations = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    assert np.array_equal(model.predict(observations, True)[0], again.predict(observations, True)[0])
    assert again.num_timesteps == 10


def test_a_header_that_is_no_header_is_damage_and_takes_no_time(tmp_path):
    path = checkpoint.save(tmp_path, build(), {})
    for text in (b"[" * 200_000, b'{"a": [' + b"[]," * 300_000 + b"0]}"):
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        with pytest.raises(checkpoint_file.DamagedError, match="its header"):
            checkpoint_file.read(path)
    with path.open("r+b") as file:  # a header of 10 GB, of zeros that the disk does not hold
        file.write((10**10).to_bytes(8, "little"))
        file.truncate(2 * 10**10)
    with pytest.raises(checkpoint_file.DamagedError, match="cut short"):
        checkpoint_file.read(path)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [DQN, SAC])
def test_a_checkpoint_that_lacks_any_array_is_refused_before_the_model_changes(tmp_path, cls):
    path = checkpoint.save(tmp_path, go_on(build(cls), 8), {})
    manifest, arrays = checkpoint_file.read(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    facts = {key: manifest[key] for key in ("updates", "replay", "model", "state")}
    optimizers = [name for name in arrays if "optimizer" in name]
    without = [{name} for name in arrays if not name.startswith(checkpoint.RANDOM)]
    first = optimizers[0].rpartition("/")[0]
    without += [{name for name in arrays if name.startswith(f"{first}/")}, {*optimizers}]
    assert optimizers[0] == next(iter(arrays))
    model = build(cls, seed=1)
    before = checkpoint_model.take(model)
    for missing in without:
        checkpoint_file.write(path, facts, {name: array for name, array in arrays.items() if name not in missing})
        with pytest.raises(QuarlError, match=r"^cannot resume from .* (lacks|is missing) "):
            checkpoint.restore(checkpoint.load_latest(tmp_path), model)
        assert equal(before, checkpoint_model.take(model))


EXP_AVG = "policy.optimizer/0/exp_avg"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda saved, arrays: saved.clear(), r"its optimizers are \[\] and this run's are \['policy.optimizer'\]"),
        (lambda saved, arrays: arrays.update({EXP_AVG: np.zeros(3)}), r"shape \(3,\) for parameter 0, whose shape"),
        (lambda saved, arrays: arrays.pop(EXP_AVG), "lacks 0/exp_avg; the checkpoint is damaged"),
        (lambda saved, arrays: saved["policy.optimizer"].update(groups=[]), "steps other parameters than this run's"),
    ],
)
def test_an_optimizer_of_another_run_is_refused(change, said):
    model = go_on(build(), 5)
    facts, arrays = take(model)
    change(facts["optimizers"], arrays)
    with pytest.raises(QuarlError, match=said):
        checkpoint_model.check(model, facts, arrays)


def test_a_pipe_in_a_checkpoint_s_place_is_damage_and_is_not_opened(tmp_path):
    older = checkpoint.save(tmp_path, stamped(build(), 1), {})
    os.mkfifo(tmp_path / "checkpoint-0000000002.safetensors")
    os.mkfifo(tmp_path / f"{checkpoint_file.TEMPORARY}7.tmp")
    found = checkpoint.load_latest(tmp_path)
    assert found.path == older
    assert "it is not a regular file" in found.warnings[0]
    checkpoint.save(tmp_path, stamped(build(), 3), {})
