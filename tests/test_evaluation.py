"""Evaluation: known optima, SB3's own returns, and independence of batch, order and processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import networks
import require
from quarl import engines, episodes
from quarl.api import Agent
from quarl.calibration import quantize
from quarl.envs import home_of
from quarl.envs.seeds import episode_seed
from quarl.errors import QuarlError
from quarl.evaluation import Evaluation, evaluate, record
from quarl.policy.graph import ActionHead, Provenance, QuantizedPolicy
from quarl.policy.operators import Dense, Op, mlp
from quarl.quant.spec import QuantSpec

Array = NDArray[Any]


def policy(ops: list[Op], inputs: int, head: ActionHead, **provenance: Any) -> QuantizedPolicy:
    return QuantizedPolicy(
        observation_shape=(inputs,),
        ops=tuple(ops),
        head=head,
        provenance=Provenance(**provenance),
        spec=QuantSpec.parse("fp32"),
    )


def balancing(**provenance: Any) -> QuantizedPolicy:
    """Pushes the cart towards the side the pole falls to: the known optimum of CartPole-v1, 500."""
    weight = np.array([[0, 0, 0, 0], [0.1, 0.3, 1, 1]], np.float32)
    ops: list[Op] = [Dense("scores", ("observation",), weight, np.zeros(2, np.float32))]
    return policy(ops, 4, ActionHead("argmax"), **({"env_id": "CartPole-v1"} | provenance))


def clumsy(env_id: str, inputs: int, actions: int) -> QuantizedPolicy:
    """An untrained tanh network: its episodes differ."""
    layers = networks.layers(np.random.default_rng(1), [inputs, 16, actions])
    limit = np.ones(actions, np.float32)
    return policy(mlp(layers, "tanh"), inputs, ActionHead("clip", -limit, limit), env_id=env_id)


def run(subject: QuantizedPolicy, **options: Any) -> Evaluation:
    environment = home_of(subject, options.pop("env_id", None))
    return evaluate(subject, environment, **({"engine": "reference"} | options))


def assert_same_episodes(ours: Evaluation, other: Evaluation) -> None:
    assert ours.returns.tolist() == other.returns.tolist()
    assert ours.lengths.tolist() == other.lengths.tolist()
    assert ours.seeds.tolist() == other.seeds.tolist()


def test_a_known_optimum_is_reached_in_every_episode() -> None:
    heard = []
    options = {"batch": 2, "progress": lambda episode: heard.append((episode.index, episode.total))}
    evaluation = run(balancing(), episodes=5, seed=3, **options)
    assert sorted(heard) == [(k, 500.0) for k in range(5)]
    assert evaluation.returns.tolist() == evaluation.lengths.tolist() == [500] * 5
    assert evaluation.seeds.tolist() == [episode_seed("evaluation", 3, k) for k in range(5)]
    assert (evaluation.env_id, evaluation.engine, evaluation.measured) == ("CartPole-v1", "reference", False)
    assert evaluation.num_steps == 2500
    assert 0 < evaluation.engine_us_per_step < evaluation.us_per_step


def test_a_retired_id_is_played_and_reported_as_the_living_one() -> None:
    assert run(balancing(env_id="CartPole-v1"), env_id="CartPole-v0", episodes=1).returns.tolist() == [200]
    require.module("Box2D")
    assert run(clumsy("BipedalWalker-v2", 24, 4), episodes=1).env_id == "BipedalWalker-v3"


@pytest.mark.parametrize(
    ("env_id", "inputs", "actions"), [("LunarLanderContinuous-v3", 8, 2), ("BipedalWalker-v3", 24, 4)]
)
def test_returns_do_not_depend_on_the_batch(env_id: str, inputs: int, actions: int) -> None:
    require.module("Box2D")
    subject = clumsy(env_id, inputs, actions)
    alone = run(subject, episodes=5, batch=1)
    assert len(set(alone.returns)) > 1
    assert_same_episodes(run(subject, episodes=5, batch=3), alone)
    assert_same_episodes(run(subject, episodes=5, batch=16), alone)
    assert run(subject, episodes=3).returns.tolist() == alone.returns.tolist()[:3]


@pytest.mark.slow
def test_returns_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = balancing(stochastic=True)
    seen: list[int] = []
    handed: list[range] = []

    def in_processes(job: episodes.Job, shares: list[range], report: Any) -> list[episodes.Clock]:
        handed.extend(shares)
        return episodes.in_processes(job, shares, report)

    monkeypatch.setattr("quarl.evaluation.in_processes", in_processes)
    shared = run(subject, episodes=5, num_workers=2, progress=lambda episode: seen.append(episode.index))
    assert_same_episodes(shared, run(subject, episodes=5))
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert handed == [range(0, 5, 2), range(1, 5, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_evaluation_that_goes_on_is_the_longer_one(num_workers: int) -> None:
    subject = balancing(stochastic=True)
    whole, begun = run(subject, episodes=5), run(subject, episodes=2)
    rest = run(subject, episodes=3, first=2, num_workers=num_workers)
    assert_same_episodes(begun.then(rest), whole)
    assert begun.then(rest).wall_s == begun.wall_s + rest.wall_s


class _Raising:
    """Stands for a job whose environment raises."""

    def play(self, indices: Any, report: Any) -> None:
        raise KeyError("lost")


class _Dying:
    def play(self, indices: Any, report: Any) -> None:
        os._exit(3)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "line"), [(_Raising(), "raised KeyError: 'lost'; "), (_Dying(), "exit code 3")])
def test_what_ends_a_worker_is_one_line(job: Any, line: str) -> None:
    with pytest.raises(QuarlError, match=re.escape(line)):
        episodes.in_processes(job, [range(1), range(1)], print)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_mistake_in_a_worker_is_the_same_one_line() -> None:
    subject = balancing(stochastic=True)
    with pytest.raises(QuarlError, match="unknown engine 'warp'"):
        run(subject, episodes=2, num_workers=2, engine="warp")


def test_sampled_actions_follow_the_zoo_unless_told_and_repeat_with_the_seed() -> None:
    subject = balancing(stochastic=True)
    sampled = run(subject, episodes=6, batch=4)
    assert sampled.stochastic
    assert sampled.returns.mean() < 500
    assert_same_episodes(run(subject, episodes=6, batch=1), sampled)
    assert run(subject, episodes=6, seed=1).returns.tolist() != sampled.returns.tolist()
    greedy = run(subject, episodes=2, stochastic=False)
    assert (greedy.stochastic, greedy.returns.tolist()) == (False, [500, 500])


@pytest.mark.slow
def test_returns_are_those_of_the_same_network_in_stable_baselines3() -> None:
    torch = require.module("torch")
    gymnasium = require.module("gymnasium")
    sb3 = require.module("stable_baselines3")
    torch.set_num_threads(1)
    model = sb3.PPO("MlpPolicy", "CartPole-v1", seed=5, device="cpu", n_steps=64, batch_size=64)
    model.learn(512)
    state = {name: tensor.numpy() for name, tensor in model.policy.state_dict().items()}
    names = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
    layers = [(name, state[f"{name}.weight"], state[f"{name}.bias"]) for name in names]
    subject = policy(mlp(layers, "tanh"), 4, ActionHead("argmax"), env_id="CartPole-v1")

    evaluation = run(subject, episodes=10, seed=2)
    env = gymnasium.make("CartPole-v1")
    for k, total in enumerate(evaluation.returns):
        observation, _ = env.reset(seed=episode_seed("evaluation", 2, k))
        theirs, ended = 0.0, False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            theirs, ended = theirs + float(reward), terminated or truncated
        assert total == theirs
    assert len(set(evaluation.returns)) > 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 1, got -1"),
        ({"first": -1}, "first must not be negative, got -1"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"env_id": "CartPol-v1"}, "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ({"env_id": "Acrobot-v1"}, "are not those of Acrobot-v1"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_played(options: dict[str, Any], line: str) -> None:
    with pytest.raises(QuarlError, match=re.escape(line)):
        run(balancing(), **options)


@pytest.mark.parametrize("batch", [1, 4])
def test_recorded_observations_are_the_same_for_every_batch(batch: int) -> None:
    subject = balancing(stochastic=True)
    recorded = record(subject, "fidelity", engine=engines.load(subject, "reference", batch=batch), num=200)
    assert recorded.shape == (200, 4)
    assert recorded.dtype == np.float32
    other = record(subject, "fidelity", engine=engines.load(subject, "reference", batch=7), num=200)
    assert np.array_equal(recorded, other)


def test_recorded_observations_come_from_many_episodes_and_none_twice() -> None:
    subject = balancing()
    engine = engines.load(subject, "reference", batch=8)
    recorded = record(subject, "calibration", engine=engine, num=50, min_episodes=5)
    assert np.array_equal(recorded[0], _episode(subject, 0)[0])
    # 5 episodes of 500 steps give 50: every 51st step, so 10 of each episode
    assert len(np.unique(recorded, axis=0)) == 50
    for k in range(5):
        met = {row.tobytes() for row in _episode(subject, k)}
        assert [row.tobytes() in met for row in recorded] == [10 * k <= place < 10 * k + 10 for place in range(50)]


def test_streams_of_observations_are_disjoint() -> None:
    subject = balancing()
    engine = engines.load(subject, "reference", batch=8)
    rows = [record(subject, s, engine=engine, num=600, min_episodes=2) for s in ("calibration", "fidelity")]
    both = np.concatenate(rows)
    assert len(np.unique(both, axis=0)) == len(both)


def _episode(subject: QuantizedPolicy, k: int) -> Array:
    """All observations of a calibration episode."""
    env, engine = home_of(subject).make_for(subject), engines.load(subject, "reference", batch=1)
    observation, _ = env.reset(seed=episode_seed("calibration", 0, k))
    met, ended = [], False
    while not ended:
        met.append(np.float32(observation))
        action = int(subject.head(engine.run(met[-1][None]))[0])
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    return np.array(met)


def test_a_policy_that_gives_infinity_is_refused_by_its_layer():
    policy = networks.dense([4, 8, 2])
    ops = tuple(replace(op, weight=np.full(op.weight.shape, 3e38, np.float32)) for op in policy.linear)
    chained = (ops[0], replace(ops[1], inputs=(ops[0].name,)))
    broken = quantize(
        replace(policy, ops=chained, provenance=Provenance(env_id="CartPole-v1")), QuantSpec.parse("fp32")
    )
    with pytest.raises(QuarlError, match=r"layer 'net\.\d' gives NaN or infinity"):
        evaluate(broken, episodes=1)
    with pytest.raises(QuarlError, match=r"layer 'net\.\d' gives NaN or infinity"):
        Agent(broken).predict(np.ones(4, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_s_workers_end_whether_it_is_guarded_or_not(tmp_path, guarded):
    """A policy that no pipe takes at once; unguarded, each worker begins the script again."""
    Agent(networks.dense([4, 256, 256, 2])).save(tmp_path / "policy.quarl")
    work = "print(quarl.evaluate('policy.quarl', episodes=2, num_workers=2, env_id='CartPole-v1', seed=1).seeds.size)"
    condition = "__name__ == '__main__'" if guarded else "True"
    (tmp_path / "script.py").write_text(f"import quarl\nif {condition}:\n    {work}\n")
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == ((0, "2\n") if guarded else (1, ""))
    if not guarded:
        assert 'put its code under if __name__ == "__main__":' in ran.stderr
