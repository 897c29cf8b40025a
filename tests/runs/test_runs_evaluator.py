"""The evaluator keeps the best agent, and what was trained with quantisation is never beaten by what was not."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN
from training_runs import train

from quarl.calibration import quantize
from quarl.config import TrainConfig
from quarl.envs import Environment
from quarl.errors import QuarlError
from quarl.evaluation import evaluate
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import EXACT
from quarl.readers import load
from quarl.runs.evaluator import BestEvaluator, undisturbed
from quarl.runs.folder import RunFolder


def evaluator(tmp_path, say=print, **options):
    environment = Environment.typed_by_user(TrainConfig(**options).env)
    return BestEvaluator(TrainConfig(**options), environment, lambda: RunFolder(tmp_path, "CartPole-v1"), say)


def test_the_best_is_the_highest_mean_and_a_tie_does_not_count(tmp_path):
    found = evaluator(tmp_path)
    steps = [(5.0, 10), (4.0, 20), (5.0, 30), (6.0, 40)]
    assert [found._improves(False, *entry) for entry in steps] == [True, False, False, True]
    assert found.best == (False, 6.0, 40)


def test_agents_before_the_delay_do_not_stand_for_the_precision(tmp_path):
    found = evaluator(tmp_path, qat="4", quant_delay=100)
    steps = [(500.0, 50, False), (30.0, 100, True), (20.0, 150, True), (40.0, 200, True)]
    assert [found._improves(acts, mean, at) for mean, at, acts in steps] == [True, True, False, True]


@pytest.fixture
def looked(tmp_path, monkeypatch):
    """An evaluator of a small model that finds the returns given: looked((steps, return), ...)."""
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1, policy_kwargs={"net_arch": [4]}, device="cpu")

    def look(*evaluations):
        found = evaluator(tmp_path)
        for model.num_timesteps, mean in evaluations:
            played = SimpleNamespace(returns=np.full(2, mean), lengths=np.full(2, 5))
            monkeypatch.setattr(found, "_play", lambda policy, stream, played=played: played)
            found.keep(model, *found.look(model))
        return found

    return look


def resumed(tmp_path, timesteps):
    found = evaluator(tmp_path)
    found.resume(timesteps)
    return found


def test_a_resumed_judge_knows_the_evaluations_so_far_and_which_agent_is_the_best_one(tmp_path, looked):
    looked((10, 1.5), (20, 5.5), (30, 2.0))
    assert [steps for steps, *_ in resumed(tmp_path, 25).entries] == [10, 20]
    assert resumed(tmp_path, 25).best == (False, 5.5, 20)
    assert resumed(tmp_path, 15).best == (
        False,
        5.5,
        20,
    )  # played after what the run goes on from, and still what is there


def test_an_agent_that_nothing_is_known_of_is_not_the_best(tmp_path, looked, monkeypatch):
    """Killed while the next one was written."""
    looked((10, 1.5))

    def killed(self, model, name):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_agent", killed)
        with pytest.raises(KeyboardInterrupt):
            looked((20, 5.5))
    assert resumed(tmp_path, 25).best is None


def test_an_evaluation_that_raises_is_played_once_more_and_then_left_out(tmp_path, monkeypatch):
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1, policy_kwargs={"net_arch": [4]}, device="cpu")
    said, failures = [], [KeyError("lost")]
    found = evaluator(tmp_path, said.append, eval_episodes=1)

    def flaky(*args, **kwargs):
        if failures:
            raise failures.pop()
        return evaluate(*args, **kwargs)

    monkeypatch.setattr("quarl.runs.evaluator.evaluate", flaky)
    assert found.keep(model, *found.look(model)) > 0
    failures += [KeyError("lost"), KeyError("lost")]
    assert found.look(model) is None
    assert ([steps for steps, *_ in found.entries], failures) == ([0], [])
    again = "an evaluation restarts (KeyError: 'lost')"
    assert said == [again, again, "skipped the evaluation after 0 steps (KeyError: 'lost'); training continues"]


@pytest.mark.slow
def test_the_best_agent_s_integers_are_kept_too(tmp_path):
    more = ["--eval-freq", "128", "--eval-episodes", "2", "--qat", "w4a8", "--quant-delay", "256"]
    train(tmp_path, "dqn", "CartPole-v1", 512, *more, evaluations=True)
    run = tmp_path / "logs/dqn/CartPole-v1_1"
    assert isinstance(load.read(run / "best_model.quarl"), QuantizedPolicy)
    assert isinstance(load.read(run / "best_model.zip"), QuantizedPolicy)


@pytest.mark.slow
def test_the_best_agent_keeps_the_statistics_it_was_best_with(tmp_path):
    more = ["normalize:True", "learning_rate:0.01", "--eval-freq", "128", "--eval-episodes", "5"]
    train(tmp_path, "ppo", "CartPole-v1", 2048, *more, evaluations=True)
    run = tmp_path / "logs/ppo/CartPole-v1_1"
    seen = np.load(run / "evaluations.npz")["results"]
    best = int(seen.mean(axis=1).argmax())
    assert best < len(seen) - 1  # statistics have moved on since
    agents = [load.read(run / f"{name}.zip") for name in ("best_model", "CartPole-v1")]
    assert not np.array_equal(*(agent.ops[0].mean for agent in agents))
    again = evaluate(quantize(agents[0], EXACT), episodes=5, seed=0, stream="development", stochastic=False)
    assert again.returns.tolist() == seen[best].tolist()


@pytest.mark.slow
def test_a_delay_that_is_over_before_learning_begins_waits_for_ranges(tmp_path):
    """Warm-up steps are random: nothing has passed through the network by the first evaluation."""
    more = ["--eval-freq", "64", "--eval-episodes", "2", "--qat", "w4a8", "--quant-delay", "0"]
    row = train(tmp_path, "dqn", "CartPole-v1", 256, *more, evaluations=True)
    assert row["mean_quantised"] is not None
    assert row["best_timesteps"] > 100
    assert isinstance(load.read(tmp_path / "logs/dqn/CartPole-v1_1/best_model.quarl"), QuantizedPolicy)


def test_generators_go_on_as_if_nothing_had_been_drawn():
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1, policy_kwargs={"net_arch": [4]}, seed=0, device="cpu")

    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item(), model.action_space.sample().item()

    model.set_random_seed(0)
    first = draw()
    model.set_random_seed(0)
    with undisturbed(model):
        draw()
    assert draw() == first


@pytest.mark.parametrize(
    "arrays",
    [
        {"timesteps": [1], "results": [[1.0]]},
        {"timesteps": [1, 2], "results": [[1.0]], "ep_lengths": [[5]]},
        {"timesteps": [1], "results": 1.0, "ep_lengths": [[5]]},
        {"timesteps": [[1]], "results": [[1.0]], "ep_lengths": [[5]]},
    ],
)
def test_evaluations_that_do_not_belong_together_are_one_line(tmp_path, looked, arrays):
    looked((10, 1.5))
    path = tmp_path / "evaluations.npz"
    np.savez(path, **arrays)
    with pytest.raises(QuarlError, match=r"evaluations\.npz is malformed; remove the file to resume without it"):
        resumed(tmp_path, 25)


@pytest.mark.parametrize("text", ["mean: 1", "mean: x\ntimesteps: 1\nquantised: no", "- 1"])
def test_facts_of_the_best_agent_that_are_none_are_one_line(tmp_path, looked, text):
    looked((10, 1.5))
    (tmp_path / "best_model.yml").write_text(text)
    with pytest.raises(QuarlError, match=r"best_model\.yml"):
        resumed(tmp_path, 25)
