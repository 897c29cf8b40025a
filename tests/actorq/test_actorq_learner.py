"""The learner's clocks are Stable-Baselines3's, whoever plays the steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.ddpg import DDPG
from stable_baselines3.dqn import dqn
from stable_baselines3.sac import sac
from stable_baselines3.td3 import td3

from quarl import qat
from quarl.actorq import learner
from quarl.actorq.board import SLOTS
from quarl.actorq.build import build, samples_per_insert
from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Actor, Control, Learner
from quarl.actorq.learner import LearnerLoop, LearnerSpec
from quarl.actorq.limiter import smallest_error_buffer
from quarl.actorq.publisher import PublisherLoop, PublisherSpec
from quarl.actorq.segment import segment_dtype
from quarl.actorq.weights import Template
from quarl.algorithms import d4pg
from quarl.algorithms.d4pg import D4PG
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.qat.policies import tables_of
from quarl.readers import load
from quarl.runs import checkpoint

STEPS = 1200
PARAMS = {
    "learning_starts": 100,
    "train_freq": 4,
    "gradient_steps": 1,
    "batch_size": 16,
    "target_update_interval": 50,
    "exploration_fraction": 0.5,
    "buffer_size": 2000,
}


def config(output: Path, **changed) -> ActorQConfig:
    chosen = {
        "algo": "dqn",
        "env": "CartPole-v1",
        "actors": 1,
        "n_timesteps": STEPS,
        "eval_freq": 0,
        "output": output,
        "preset": "none",
    }
    words = tuple(f"{name}:{value}" for name, value in PARAMS.items())
    return ActorQConfig(**chosen | {"params": words} | changed)


class Rig:
    """A learner in this process, and this process as its actor."""

    def __init__(self, chosen: ActorQConfig) -> None:
        chosen.check()
        model = build(chosen)
        dtype = segment_dtype(model.observation_space, model.action_space)
        self.channel = LocalChannel.create(chosen.actors, Template(model).num_floats, dtype, 256)
        self.counters = self.channel.counters
        self.actor = self.channel.of(0)
        try:
            self.loop = LearnerLoop(LearnerSpec(config=chosen, channel=self.channel))
        except QuarlError:
            self.channel.remove()
            raise
        self.sent, self.rng = 0, np.random.default_rng(0)

    def begin(self) -> Self:
        """Itself, when its loop is at work."""
        self.loop.begin()
        return self

    def go_on(self, is_enough: Callable[[], object]) -> None:
        """Steps of an actor, and one of the learner after each."""
        while not is_enough():
            self.send()
            self.loop.step()

    def send(self, **fields: float) -> None:
        """One made-up step of the actor."""
        row = np.zeros(1, self.channel.dtype)
        row["sequence"], row["version"] = self.sent, 1
        row["observation"], row["next_observation"] = self.rng.standard_normal((2, *row["observation"].shape))
        row["action"] = self.rng.integers(2)
        row["reward"] = 1.0
        row["truncated"] = self.sent % 20 == 19
        for name, value in fields.items():
            row[name] = value
        assert self.actor.room()
        self.actor.send(row.item()[:10], row["action"][0], row["observation"][0], row["next_observation"][0])
        self.sent += 1
        self.counters.actors[0, Actor.STEPS] = self.sent


@pytest.fixture
def rig(tmp_path, monkeypatch):
    """Whoever sends waits for the learner's step here, so that this one waits for no more than a nap."""
    monkeypatch.setattr(learner, "GATHER_S", 1e-9)
    made = []

    def create(**changed):
        made.append(Rig(config(tmp_path, **changed)))
        return made[-1]

    yield create
    for each in made:
        each.channel.remove()


class _Record(BaseCallback):
    """What plain `learn` does, step by step."""

    def __init__(self, trace):
        super().__init__()
        self.trace = trace

    def _on_step(self):
        self.trace.append(_clocks(self.model))
        return True


def _clocks(model):
    return (
        model.num_timesteps,
        model._n_updates,
        getattr(model, "_n_calls", 0),
        round(getattr(model, "exploration_rate", 0.0), 9),
        getattr(model, "critic", model.policy).optimizer.param_groups[0]["lr"],
    )


OF_DQN = ("target_update_interval", "exploration_fraction")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "cls", "env", "module"),
    [
        ("dqn", DQN, "CartPole-v1", dqn),
        ("sac", SAC, "Pendulum-v1", sac),
        ("td3", TD3, "Pendulum-v1", td3),
        ("ddpg", DDPG, "Pendulum-v1", td3),
        ("d4pg", D4PG, "Pendulum-v1", d4pg),
    ],
)
def test_a_lockstep_run_has_the_clocks_of_plain_learn(rig, monkeypatch, algo, cls, env, module):
    copies = []
    polyak = module.polyak_update  # nothing else moves the target network
    monkeypatch.setattr(module, "polyak_update", lambda *args: (copies.append(args[2]), polyak(*args)))
    plain_trace: list = []
    schedule = {"learning_rate": lambda progress: 1e-3 * progress}
    params = {name: value for name, value in PARAMS.items() if algo == "dqn" or name not in OF_DQN}
    plain = cls("MlpPolicy", env, seed=0, **params, **schedule, policy_kwargs={"net_arch": [16]})
    plain.learn(STEPS, callback=_Record(plain_trace))
    plain_copies, plain_end = len(copies), _clocks(plain)
    copies.clear()

    smallest = float(smallest_error_buffer(16 / 4, 16))
    words = (*(f"{name}:{value}" for name, value in params.items()), "learning_rate:lin_1e-3")
    lockstep = rig(algo=algo, env=env, net_arch="16", params=words, error_buffer=smallest)
    model = lockstep.loop.model
    trace = []
    lockstep.loop.begin()
    while not lockstep.loop.finished():
        if lockstep.sent < lockstep.counters.learner[Learner.INSERT_LIMIT]:
            trace.append(_clocks(model))  # what the callback of plain `learn` sees: the step is made, not yet booked
            lockstep.send()
        lockstep.loop.step()
    assert _clocks(model)[:4] == plain_end[:4]
    assert _clocks(model)[4] == pytest.approx(plain_end[4])
    assert len(copies) == plain_copies > 0
    assert [entry[1] for entry in trace[1:]] == [entry[1] for entry in plain_trace[1:]]
    # a step is counted when it comes in
    assert [entry[0] + 1 for entry in trace] == [entry[0] for entry in plain_trace]
    assert [entry[2:4] for entry in trace[1:]] == [entry[2:4] for entry in plain_trace[1:]]
    assert [entry[4] for entry in trace[1:]] == pytest.approx([entry[4] for entry in plain_trace[1:]])


@pytest.mark.parametrize(
    ("algo", "env"), [("dqn", "CartPole-v1"), ("ddpg", "Pendulum-v1"), ("sac", "Pendulum-v1"), ("d4pg", "Pendulum-v1")]
)
def test_adam_takes_one_pass_over_the_weights(algo, env, tmp_path):
    model = build(config(tmp_path, algo=algo, env=env, params=()))
    optimizers = [module.optimizer for module in model.policy.modules() if hasattr(module, "optimizer")]
    assert optimizers
    assert all(group["fused"] for optimizer in optimizers for group in optimizer.param_groups)


def test_an_optimizer_that_was_asked_for_is_kept(tmp_path):
    model = build(config(tmp_path, params=("policy_kwargs:{'optimizer_kwargs': {'eps': 1e-5}}",)))
    group = model.policy.optimizer.param_groups[0]
    assert (group["fused"], group["eps"]) == (None, 1e-5)
    other = build(config(tmp_path, params=("policy_kwargs:dict(optimizer_class=RMSprop)",)))
    assert isinstance(other.policy.optimizer, torch.optim.RMSprop)


def test_hyperparameters_are_in_the_zoo_s_words(tmp_path):
    kwargs = "policy_kwargs:dict(activation_fn=nn.Tanh, optimizer_class=AdamW)"
    model = build(config(tmp_path, algo="sac", env="Pendulum-v1", params=("ent_coef:auto_0.05", kwargs)))
    assert float(model.log_ent_coef.detach().exp()) == pytest.approx(0.05)
    assert isinstance(model.actor.optimizer, torch.optim.AdamW)
    assert any(isinstance(module, torch.nn.Tanh) for module in model.actor.modules())


def test_the_ratio_is_the_algorithms_own_unless_one_is_asked_for(rig):
    assert samples_per_insert(rig().loop.model) == 16 / 4
    chosen = rig(samples_per_insert=0.5).begin()
    while (done := chosen.sent) < 800:
        assert done < chosen.counters.learner[Learner.INSERT_LIMIT] or chosen.loop.limiter.updates_allowed()
        if done < chosen.counters.learner[Learner.INSERT_LIMIT]:
            chosen.send()
        chosen.loop.step()
    model = chosen.loop.model
    assert model._n_updates == int((model.num_timesteps - 100) * 0.5 // 16)
    chosen.loop._show()
    shown = chosen.counters.learner[Learner.SAMPLES_PER_INSERT]  # the warm-up does not count
    assert shown == 16 * model._n_updates / (model.num_timesteps - 100)


def test_updates_of_an_episode_are_no_ratio(tmp_path):
    td3 = {"algo": "td3", "env": "Pendulum-v1"}
    with pytest.raises(QuarlError, match=r"10 updates per episode are not a fixed ratio.* set gradient_steps:-1"):
        build(config(tmp_path, **td3, params=("train_freq:[1,'episode']", "gradient_steps:10")))
    model = build(config(tmp_path, **td3, params=("train_freq:[1,'episode']", "gradient_steps:-1")))
    assert samples_per_insert(model) == model.batch_size


def test_the_original_s_dqn_learns_once_in_sixteen_steps_and_copies_its_target_every_hundred(tmp_path):
    model = build(config(tmp_path, preset="quarl-2020", params=(), net_arch="8"))
    assert samples_per_insert(model) == 16
    assert model.target_update_interval / model.train_freq.frequency == 100
    assert [type(layer) for layer in model.q_net.q_net] == [torch.nn.Linear, torch.nn.Tanh, torch.nn.Linear]
    assert model.max_grad_norm == 1e9


def test_the_original_s_d4pg_keeps_its_ratio_and_its_policy(tmp_path):
    d4 = {"algo": "d4pg", "env": "Pendulum-v1", "preset": "quarl-2020"}
    model = build(config(tmp_path, **d4, params=("buffer_size:1000",)))
    assert samples_per_insert(model) == 16
    widths = [layer.out_features for layer in model.actor.modules() if isinstance(layer, torch.nn.Linear)]
    assert widths == [2048, 2048, 2048, 1]
    other = build(config(tmp_path, **d4, params=("buffer_size:1000", "qf_arch:[64,32]")))
    assert [layer.out_features for layer in other.actor.modules() if isinstance(layer, torch.nn.Linear)] == widths
    assert other.critic.head.in_features == 32


@pytest.mark.parametrize(("net_arch", "more"), [("16", ()), (None, ("qf_arch:[8]",))])
def test_layers_that_are_given_twice_are_refused(tmp_path, net_arch, more):
    twice = ("policy_kwargs:dict(net_arch=[32])", *more)
    with pytest.raises(QuarlError, match="net_arch in --params policy_kwargs conflicts with"):
        build(config(tmp_path, algo="td3", env="Pendulum-v1", net_arch=net_arch, params=twice))


def test_an_actor_of_several_environments_has_room_for_a_step_of_them_all(rig):
    """Also for the last one, of which the learner takes what is left."""
    chosen = rig(envs_per_actor=13, n_timesteps=500).begin()
    for _ in range(500):
        if chosen.counters.learner[Learner.INSERT_LIMIT] - chosen.sent >= 13:
            for _ in range(13):
                chosen.send()
        chosen.loop.step()
    assert chosen.loop.finished()
    assert (chosen.sent, chosen.loop.model.num_timesteps) == (39 * 13, 500)
    with pytest.raises(QuarlError, match=r"use at least 67\.0"):
        rig(envs_per_actor=13, error_buffer=60.0)


def test_a_learner_that_is_ahead_waits_for_experience_and_trains_no_further(rig):
    lonely = rig().begin()
    for _ in range(20):
        lonely.loop.step()
    assert lonely.loop.model._n_updates == 0
    assert lonely.counters.learner[Learner.WAIT_S] > 0


def test_every_push_has_a_higher_version_also_after_resume(rig, tmp_path):
    first = rig(publish_interval=1).begin()
    first.go_on(lambda: first.loop.model._n_updates >= 30)
    published = first.actor.floats.version
    assert published >= 30
    first.loop._save()
    second = rig(publish_interval=1, resume=True)
    assert second.loop.model._n_updates == first.loop.model._n_updates
    assert second.loop.model.num_timesteps == first.loop.model.num_timesteps
    assert second.loop.limiter.inserts == first.loop.limiter.inserts
    second.loop.begin()
    assert second.actor.floats.version > published


def test_exploration_goes_on_after_resume_where_it_was(rig):
    first = rig().begin()
    assert first.counters.learner[Learner.EXPLORATION] == 1.0
    first.go_on(lambda: first.loop.model.num_timesteps >= 300)
    first.loop._save()
    second = rig(resume=True).begin()
    assert second.counters.learner[Learner.EXPLORATION] == pytest.approx(1 - 0.95 * 300 / 600)


@pytest.mark.slow
@pytest.mark.parametrize("longer", [2 * STEPS, 900])
def test_schedules_of_a_resumed_run_end_where_it_ends_now_and_never_rise(rig, capsys, longer):
    params = tuple(f"{name}:{value}" for name, value in PARAMS.items())
    chosen = {"params": (*params, "learning_rate:lin_1e-3")}
    first = rig(**chosen)
    first.go_on(lambda: first.loop.model.num_timesteps >= 600)
    first.loop._save()
    second = rig(**chosen, resume=True, n_timesteps=longer)
    assert second.loop.replay.size() == 600
    said = "resuming at step 600 after 124 updates, 600 rows of replay, epsilon 0.05, version 12"
    if longer > STEPS:
        said += "; schedules do not rise again in the longer run: learning_rate at most 0.0005, epsilon at most 0.05"
    assert f"quarl: {said}\n" in capsys.readouterr().err
    assert second.loop.checkpointer.learning_rate() == pytest.approx(1e-3 * min(1 - 600 / longer, 0.5))
    second.send()
    second.loop.step()
    assert second.loop.model.exploration_rate == pytest.approx(0.05)  # as where it stopped, halfway through the first
    second.loop.checkpointer.roll_back()  # to a checkpoint that knows the old end
    second.send()
    second.loop.step()
    assert second.loop.checkpointer.learning_rate() == pytest.approx(0.5e-3 * min(1 - 602 / longer, 0.5))


def test_an_agent_that_learnt_from_normalised_observations_keeps_their_statistics(rig, tmp_path):
    chosen = rig(normalize=True, updates=3)
    chosen.go_on(chosen.loop.finished)
    chosen.loop.run()
    seen = chosen.loop.model.get_vec_normalize_env().obs_rms
    first = load.read(tmp_path / "model.zip").ops[0]
    assert seen.count > 100
    np.testing.assert_array_equal(first.mean, seen.mean)


def test_poisoned_weights_are_neither_pushed_nor_saved_and_training_goes_back(rig, capsys):
    chosen = rig(publish_interval=1).begin()
    loop = chosen.loop
    chosen.go_on(lambda: loop.model._n_updates >= 20)
    sound = chosen.actor.floats.pull().data.view(np.float32)
    assert np.isfinite(sound).all()
    rate = loop.checkpointer.learning_rate()
    with torch.no_grad():
        next(loop.model.policy.parameters())[0, 0] = float("nan")
    updates = loop.model._n_updates
    chosen.go_on(lambda: loop.model._n_updates >= updates + 3)
    assert np.isfinite(chosen.actor.floats.pull().data.view(np.float32)).all()
    assert loop.checkpointer.learning_rate() == pytest.approx(rate / 2)
    assert loop.checkpointer.rollbacks == 1
    assert "not finite" in capsys.readouterr().err


def test_nan_that_a_distribution_refuses_sends_training_back_too(rig, capsys):
    """SAC's losses are finite until its actor's numbers are not, and then there are none."""
    chosen = rig(
        algo="sac", env="Pendulum-v1", params=("learning_starts:20", "buffer_size:200", "batch_size:16")
    ).begin()
    loop = chosen.loop

    def train():
        updates = loop.model._n_updates
        chosen.go_on(lambda: loop.model._n_updates >= updates + 2)

    train()
    with torch.no_grad():
        loop.model.actor.mu.bias[0] = float("nan")
    train()
    assert loop.checkpointer.rollbacks == 1
    assert "actor.mu.bias was not finite" in capsys.readouterr().err
    assert all(bool(torch.isfinite(parameter).all()) for parameter in loop.model.policy.parameters())


def test_going_back_past_a_damaged_checkpoint_is_said(rig, capsys):
    chosen = rig().begin()
    loop = chosen.loop
    chosen.go_on(lambda: loop.model._n_updates)
    loop._save()
    newest = max(loop.config.output.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-9])
    loop._roll_back()
    assert newest.name in capsys.readouterr().err


def test_weights_that_were_written_over_while_they_were_packed_are_not_published(rig, monkeypatch):
    chosen = rig().begin()
    spec = PublisherSpec(channel=chosen.channel, template=Template(chosen.loop.model), packer=("int8", None, "none"))
    publisher, floats, packed = PublisherLoop(spec), chosen.actor.floats, chosen.actor.packed
    pack = publisher.packer.to_bytes
    first = floats.pull()

    def overtaken(*args):
        data = pack(*args)
        for _ in range(SLOTS):
            floats.publish(first.data.tobytes(), version=floats.version + 1, step=0)
        return data

    monkeypatch.setattr(publisher.packer, "to_bytes", overtaken)
    assert publisher.publish()
    # those of the second look, of a copy, so that a learner that stays as fast cannot keep it from publishing
    assert packed.version == first.version + SLOTS < floats.version
    assert publisher.publish()
    assert packed.version == first.version + 3 * SLOTS


def test_poisoned_weights_are_not_evaluated(rig):
    chosen = rig(publish_interval=1000).begin()
    loop = chosen.loop
    with torch.no_grad():
        loop.model.q_net.q_net[0].bias[0] = float("nan")
    chosen.counters.control[Control.EVALUATED] = 1
    loop._evaluate()
    assert np.isfinite(chosen.actor.floats.pull().data.view(np.float32)).all()
    assert loop.checkpointer.rollbacks == 1


@pytest.mark.parametrize(("options", "seconds", "steps"), [({}, 299, 0), ({}, 300, 3), ({"save_minutes": 0.0}, 1e9, 0)])
def test_a_slow_environment_has_a_checkpoint_every_few_minutes(rig, tmp_path, options, seconds, steps):
    made = rig(**options).begin()
    for _ in range(3):
        made.send()
    made.loop.saved -= seconds
    made.loop.step()
    assert made.loop.model.num_timesteps == 3
    assert checkpoint.load_latest(tmp_path).facts["counters"]["num_timesteps"] == steps


def test_without_episodes_a_learner_does_not_stand_still(rig):
    made = rig(eval_freq=2, eval_episodes=0).begin()
    for _ in range(5):
        made.send()
    made.loop.step()
    assert made.loop.model.num_timesteps == 5
    assert made.counters.learner[Learner.EVALUATIONS] == 0


def test_stop_ends_the_loop(rig):
    chosen = rig().begin()
    assert not chosen.loop.finished()
    chosen.counters.control[Control.STOP] = 1
    assert chosen.loop.finished()


def test_the_training_clock_stands_still_while_an_evaluation_is_played(rig):
    loop = rig().begin().loop
    loop.started = began = time.perf_counter()
    control = loop.counters.control
    played = threading.Timer(0.6, lambda: control.__setitem__(Control.EVALUATED, 1))
    played.start()
    loop._evaluate()
    clock, now = loop._clock(), time.perf_counter()
    assert now - began > loop.paused_s >= 0.5
    assert clock <= now - began - loop.paused_s


@pytest.mark.parametrize(
    ("field", "value"), [("reward", np.nan), ("observation", np.inf), ("next_observation", -np.inf)]
)
def test_what_is_no_number_does_not_reach_replay(rig, field, value):
    chosen = rig().begin()
    chosen.send()
    chosen.loop.step()
    assert chosen.loop.replay.size() == 1
    chosen.send(**{field: value})
    with pytest.raises(
        QuarlError, match=f"the environment returned a {field.replace('_', ' ')} that is NaN or infinite"
    ):
        chosen.loop.step()
    assert chosen.loop.replay.size() == 1
    saved = checkpoint.load_latest(chosen.loop.config.output)  # what was learned until then is not lost
    assert saved.facts["counters"]["num_timesteps"] == 1


@pytest.mark.slow
def test_fake_quantisation_acts_in_the_learner_from_its_step_on(rig):
    chosen = rig(qat="w8a8", quant_delay=300)
    loop, grids = chosen.loop, []
    loop.begin()
    for _ in range(400):
        chosen.send()
        while loop.step() or loop.limiter.updates_allowed():
            pass
        loop._push()
        flat = np.zeros(loop.template.num_floats, np.float32)
        loop.template.flatten_into(loop.model, flat)
        grids.append(loop.template.grids(flat) is not None)
    assert [loop.model.num_timesteps, grids.index(True) + 1] == [400, 300]
    assert all(grids[299:])


def test_quantisation_that_acts_after_the_last_update_is_no_result(rig):
    loop = rig(qat="w8a8", quant_delay=300).begin().loop
    loop.checkpointer.float_updates = loop.model._n_updates = 7
    loop.delay = 0
    for table in tables_of(loop.model.policy).values():
        table.seen_range[:] = torch.tensor([0.0, 1.0])
    qat.follow(loop.model, active=True)
    with pytest.raises(QuarlError, match="use a smaller --quant-delay"):
        loop.conclude()
    loop._push()  # an evaluation of these weights is one of a float agent
    assert loop.cells[Learner.TRAINED_FOR] == 0
    loop.model._n_updates = 8
    loop.conclude()
    loop._push()
    assert loop.cells[Learner.TRAINED_FOR] == 1


def test_a_resumed_learner_goes_on_with_its_rate_its_clock_and_its_counts(rig, tmp_path):
    first = rig().begin()
    for _ in range(400):
        first.send()
        while first.loop.step() or first.loop.limiter.updates_allowed():
            pass
    first.loop.checkpointer.roll_back()
    first.loop.checkpointer.save(123.0)
    rate = first.loop.model.lr_schedule(1.0)
    again = rig(resume=True).loop
    again.begin()
    cells = again.cells
    assert again.model.lr_schedule(1.0) == rate < 1e-4
    assert again._clock() >= 123
    assert again.model.num_timesteps == first.loop.model.num_timesteps == cells[Learner.BEGAN_AT]
    assert cells[Learner.RANDOM_UNTIL] == PARAMS["learning_starts"] - again.model.num_timesteps
    assert cells[Learner.INSERT_LIMIT] == again.limiter.insert_limit() - again.model.num_timesteps
