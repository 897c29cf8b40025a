"""Policies with a memory in Python and in verbs: states that are carried, recorded episodes, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

import networks
import quarl.qat
import require
from quarl import engines
from quarl.cli import main
from quarl.evaluation import carry, record
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Provenance
from refusals import refused

SIZE = 5
STARTS = np.zeros((60, 4), bool)  # of episodes in four sequences: one, two, three, and episodes of one step
STARTS[0] = STARTS[20, 1] = STARTS[[7, 40], 2] = STARTS[1:, 3] = True


@pytest.fixture(scope="module")
def x():
    """Observations of four sequences."""
    return np.random.default_rng(1).normal(size=(*STARTS.shape, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def pendulum():
    """A recurrent agent of Pendulum-v1, with random weights."""
    head = ActionHead("clip", np.full(1, -2, np.float32), np.full(1, 2, np.float32), width=1)
    about = {"head": head, "provenance": Provenance(algo="ppo_lstm", env_id="Pendulum-v1")}
    return quarl.Agent(replace(networks.recurrent("lstm", inputs=3, outputs=1), **about))


def by_hand(policy, observations, starts):
    """Actions, rows and states of one sequence: the state is set at starts, and passed from step to step."""
    running, state, rows, outputs = engines.load(policy, "reference"), policy.state, [], []
    for each, begins in zip(observations, starts, strict=True):
        rows.append(np.concatenate([each, policy.state if begins else state]))
        outputs.append(running.run(rows[-1][None])[0])
        state = outputs[-1][policy.num_outputs :]
    return policy.head(np.array(outputs)), np.array(rows), np.array(outputs)[:, policy.num_outputs :]


def carried(agent, observations, starts, engine="reference"):
    """Actions [T, B, A] and states [T, B, S] of predict."""
    state, actions, states = None, [], []
    for each, begin in zip(observations, starts, strict=True):
        action, state = agent.predict(each, state, begin, engine=engine)
        actions.append(action)
        states.append(state)
    return np.array(actions), np.array(states)


@pytest.mark.parametrize("mode", ["float", "static", "dynamic"])
@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_predict_carries_states_as_a_loop_of_one_sequence_does(layer, mode, x):
    agent = quarl.Agent(networks.recurrent(layer))
    recorded = {"seen": x[:, 2], "episode_start": STARTS[:, 2]}
    agent = agent if mode == "float" else agent.quantize(8, mode=mode, observations=recorded)
    actions, states = carried(agent, x, STARTS)
    for row in range(x.shape[1]):
        alone, _, last = by_hand(agent._quantized(), x[:, row], STARTS[:, row])
        np.testing.assert_array_equal(actions[:, row], alone)
        np.testing.assert_array_equal(states[:, row], last)
    # the same sequences in another order, and in batches of another size, interleaved
    order = [2, 0, 3]
    again, states_again = carried(agent, x[:, order], STARTS[:, order])
    np.testing.assert_array_equal(again, actions[:, order])
    np.testing.assert_array_equal(states_again, states[:, order])
    if mode == "static":
        np.testing.assert_array_equal(carried(agent, x, STARTS, "litert")[1], states)


def test_predict_takes_a_single_observation_and_its_state(x):
    agent = quarl.Agent(networks.recurrent("lstm"))
    action, state = agent.predict(x[0, 0])
    assert (action.shape, state.shape, state.dtype) == ((3,), (24,), np.float32)
    batch, _ = agent.predict(x[1, :1], state[None], [False])
    np.testing.assert_array_equal(agent.predict(x[1, 0], state)[0], batch[0])
    for start in (True, np.ones(1, bool)):
        np.testing.assert_array_equal(agent.predict(x[1, 0], state, start)[0], agent.predict(x[1, 0])[0])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((np.zeros((1, 9, SIZE)),), "without a time axis"),
        ((np.zeros(SIZE + 24),), r"observation is \(29,\), the policy expects \(5,\)"),
        ((np.zeros(SIZE), np.zeros(23)), r"state is \(23,\), the policy expects \(24,\)"),
        ((np.zeros(SIZE), np.zeros((1, 24))), r"state is \(1, 24\), the policy expects \(24,\)"),
        ((np.zeros(SIZE), (np.zeros(12), np.zeros(3))), "the state is not an array of numbers"),
        ((np.zeros(SIZE), np.full(24, 1e39)), "finite"),
        (
            (np.zeros((2, SIZE)), np.zeros((2, 24)), [True]),
            r"episode_start is bool \(1,\): pass a boolean for each of 2",
        ),
    ],
)
def test_predict_refuses_other_shapes(arguments, line):
    with pytest.raises(quarl.QuarlError, match=line) as refusal:
        quarl.Agent(networks.recurrent("lstm")).predict(*arguments)
    assert "\n" not in str(refusal.value)


def test_recorded_episodes_become_the_rows_of_the_float_policy(x):
    agent = quarl.Agent(networks.recurrent("gru"))
    rows = by_hand(agent._quantized(), x[:, 1], STARTS[:, 1])[1]
    given = {"obs": x[:, 1], "episode_start": STARTS[:, 1].astype(int)}
    ours, theirs = (agent.quantize(4, mode="static", observations=each) for each in (given, rows))
    np.testing.assert_allclose(ours.policy.box[1], rows.max(axis=0), atol=2.0**-20)
    for one, other in zip(ours.policy.linear, theirs.policy.linear, strict=True):
        np.testing.assert_array_equal(one.weight.codes, other.weight.codes)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (lambda x, s: x, "need episode_start, bool"),
        (lambda x, s: {"obs": x, "rewards": x, "episode_start": s}, "2 arrays beside episode_start"),
        (lambda x, s: {"obs": x, "episode_start": s[1:]}, "for each of 60 observations"),
        (lambda x, s: {"obs": x, "episode_start": ~s}, "begins with False"),
        (lambda x, s: {"obs": x[None], "episode_start": s}, "without a time axis"),
    ],
)
def test_recorded_episodes_without_their_starts_are_refused(given, line, x):
    with pytest.raises(quarl.QuarlError, match=line):
        quarl.Agent(networks.recurrent("lstm")).quantize(8, mode="static", observations=given(x[:, 0], STARTS[:, 0]))


def test_verbs_read_recorded_episodes_and_refuse_bare_rows(elsewhere, tmp_path, x, capsys):
    agent = quarl.Agent(networks.recurrent("lstm"))
    agent.save("policy.quarl")
    np.savez("good.npz", obs=x[:, 2], episode_start=STARTS[:, 2])
    np.save("bare.npy", x[:, 2])
    np.savetxt("bare.csv", x[:, 2], delimiter=",")
    for file in ("bare.npy", "bare.csv"):
        assert "need episode_start" in refused(capsys, "ptq", "policy.quarl", "--observations", file, "-o", "out")
    told = ["--bits", "8", "--mode", "static", "--json", "rows.json", "-o", "out"]
    assert main(["ptq", "policy.quarl", "--observations", "good.npz", *told]) == 0
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][1]["observations"] == 6
    seen = {"obs": x[:54, 2], "episode_start": STARTS[:54, 2]}
    wanted = agent.quantize(8, mode="static", observations=seen)
    assert artifact.to_bytes(quarl.load("out/int8.safetensors").policy) == artifact.to_bytes(wanted.policy)


def test_evaluation_plays_what_predict_does_in_any_batch(pendulum):
    agent = pendulum.quantize(8, mode="static")
    played = agent.evaluate(episodes=3, batch=1)
    np.testing.assert_array_equal(agent.evaluate(episodes=3, batch=3).returns, played.returns)
    env = gymnasium.make("Pendulum-v1")
    for seed, total in zip(played.seeds, played.returns, strict=True):
        (observation, _), state, ended, rewards = env.reset(seed=int(seed)), None, False, []
        while not ended:
            action, state = agent.predict(observation, state)
            observation, reward, _, ended, _ = env.step(action)
            rewards.append(float(reward))
        assert total == pytest.approx(sum(rewards), rel=1e-9)


def test_recorded_steps_of_a_span_follow_each_other(pendulum):
    rows = record(pendulum.policy, num=100, span=32, min_episodes=2)
    for window in rows.reshape(3, 32, 3 + pendulum.policy.state.size):
        np.testing.assert_array_equal(carry(pendulum._quantized(), window), window)


@pytest.mark.slow
def test_verbs_play_a_policy_with_a_memory(pendulum, elsewhere, capsys):
    pendulum.save("policy.quarl")
    few = ["--max-episode-steps", "30"]
    assert main(["play", "policy.quarl", "--record", "play.gif", "--episodes", "1", *few]) == 0
    told = ["--episodes", "10", "--bits", "8", "--levels", "noise:0.1", "delay:1", "-o", "robust"]
    assert main(["robust", "policy.quarl", *told]) == 0
    static = ["--episodes", "10", "--bits", "8", "--mode", "static", "-o", "out", *few]
    assert main(["ptq", "policy.quarl", *static, "--envelope", "env"]) == 0
    assert "no box: the policy has a memory" in capsys.readouterr().err
    assert main(["bench", "latency", "policy.quarl", "--bits", "int8"]) == 0
    assert main(["inspect", "policy.quarl", "--bits", "8", "-o", "weights"]) == 0


def test_training_refuses_policies_with_a_memory_by_name(capsys):
    for words in (["train", "--qat", "8"], ["actorq"], ["sweep"]):
        line = refused(capsys, *words, "--algo", "ppo_lstm", "--env", "CartPole-v1", "-n", "1000")
        assert "ppo_lstm" in line
    contrib = require.module("sb3_contrib")
    model = contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 4}, device="cpu")
    with pytest.raises(quarl.QuarlError, match=r"(?i)recurrentppo|ppo_lstm"):
        quarl.qat.prepare(model, "int8")
