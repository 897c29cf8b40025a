"""Actions of several numbers and of bits: read, played, sampled, quantised, taught and saved as they were trained."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, registry
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvMultiBinary, InvalidActionEnvMultiDiscrete
from scipy.special import expit, softmax
from scipy.stats import chisquare
from stable_baselines3 import A2C, PPO
from stable_baselines3.common import envs

import networks
import quarl
from quarl.api import Agent
from quarl.cli import main
from quarl.distillation.loss import loss_of
from quarl.errors import QuarlError
from quarl.export import contract
from quarl.judging import fidelity
from quarl.policy import artifact
from quarl.policy.graph import ActionHead
from refusals import refused
from runs.training_runs import Threads, train

SEGMENTS = (2, 5, 3)
SPACES = {"Numbers-v0": spaces.MultiDiscrete(SEGMENTS), "Bits-v0": spaces.MultiBinary(3)}


class Match(gymnasium.Env[Any, Any]):
    """Each number of the action is right where it says in which part of its range an observation lies."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own)
    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, env_id: str, render_mode: str | None = None) -> None:
        self.action_space = SPACES[env_id]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert action.flags.writeable
        counts = getattr(self.action_space, "nvec", 2)
        wanted = np.floor((self.seen.astype(float) + 1) / 2 * counts)
        return self.look(), float(np.mean(action == wanted)), False, False, {}

    def look(self) -> Any:
        self.seen = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.seen


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    for env_id in SPACES:
        gymnasium.register(env_id, Match, max_episode_steps=20, kwargs={"env_id": env_id})
    yield
    for env_id in SPACES:
        del registry[env_id]


@pytest.fixture(scope="module", params=[(PPO, "Numbers-v0"), (PPO, "Bits-v0"), (A2C, "Numbers-v0"), (A2C, "Bits-v0")])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, Agent, Agent]:
    """A model that was trained shortly, its environment, and the agents of its zip and of itself."""
    kind, env_id = request.param
    options = {"n_steps": 64, "n_epochs": 5} if kind is PPO else {"n_steps": 8}
    network = {"net_arch": [32]}
    with Threads():
        model = kind("MlpPolicy", env_id, policy_kwargs=network, learning_rate=3e-3, seed=0, device="cpu", **options)
        model.learn(4_000)
    path = tmp_path_factory.mktemp("zip") / f"{env_id}.zip"
    model.save(path)
    return model, env_id, quarl.load(path), quarl.from_sb3(model)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "litert"])
def test_every_action_is_that_of_predict(trained: Any, engine: str):
    model, _, *agents = trained
    observations = np.random.default_rng(0).uniform(-1, 1, (2_000, 3)).astype(np.float32)
    expected = model.predict(observations, deterministic=True)[0]
    assert len(np.unique(expected, axis=0)) > 4
    for agent in agents:
        actions = agent.predict(observations, engine=engine)[0]
        assert (actions.dtype, actions.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(actions, expected)
        assert np.array_equal(agent.predict(observations[7], engine=engine)[0], expected[7])


@pytest.mark.slow
def test_episodes_return_what_they_do_under_the_library_itself(trained: Any):
    model, env_id, agent, _ = trained
    evaluation = agent.evaluate(episodes=20, env_id=env_id, stochastic=False)
    env = gymnasium.make(env_id)
    for seed, total in zip(evaluation.seeds, evaluation.returns, strict=True):
        (observation, _), expected, over = env.reset(seed=int(seed)), 0.0, False
        while not over:
            observation, reward, _, over, _ = env.step(model.predict(observation, deterministic=True)[0])
            expected += float(reward)
        assert total == expected
    blind = 20 * np.mean(1 / np.array(SEGMENTS if env_id == "Numbers-v0" else (2, 2, 2)))
    assert evaluation.returns.mean() > 1.2 * blind


@pytest.mark.slow
def test_eight_bits_in_both_modes_play_nearly_as_well_and_come_back_from_their_file(trained: Any, tmp_path: Path):
    _, env_id, agent, _ = trained
    exact = agent.evaluate(episodes=20, env_id=env_id, stochastic=False).returns.mean()
    observations = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    for mode in ("dynamic", "static"):
        small = agent.quantize("int8", observations=observations, mode=mode)
        small.save(tmp_path / "small.quarl")
        back = quarl.load(tmp_path / "small.quarl")
        assert dataclasses.astuple(back.policy.head)[-2:] == dataclasses.astuple(small.policy.head)[-2:]
        assert back.evaluate(episodes=20, env_id=env_id, stochastic=False).returns.mean() > 0.95 * exact


@pytest.mark.slow
def test_precisions_are_compared_by_the_actions_that_are_wholly_equal(trained: Any, tmp_path: Path):
    model, env_id, agent, _ = trained
    model.save(tmp_path / f"{env_id}.zip")
    words = ["ptq", str(tmp_path / f"{env_id}.zip"), "--env", env_id, "--bits", "fp32", "8", "--episodes", "4"]
    assert main([*words, "--json", str(tmp_path / "rows.json"), "-o", str(tmp_path / "out")]) == 0
    exact, eight = (row["agreement"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"])
    assert exact == 1
    assert eight > 0.9
    actions = np.array([[1, 0, 2], [0, 1, 1]])
    assert fidelity(agent.policy, actions, np.array([[1, 0, 2], [0, 0, 1]]))["agreement"] == 0.5


@pytest.mark.slow
def test_a_saved_file_says_how_its_scores_divide(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, env_id, agent, _ = trained
    observations = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
    agent.save(tmp_path / "p.onnx")
    said = capsys.readouterr().err
    (output,) = onnxruntime.InferenceSession(tmp_path / "p.onnx").run(None, {"observation": observations})
    if env_id == "Bits-v0":
        assert "p.onnx: its output is a number for each bit, which is 1 where that is above 0" in said
        actions = output > 0
    else:
        assert (
            "p.onnx: its output is scores, 2, 5, 3 of them for each number of the action: that of the largest" in said
        )
        actions = np.stack([output[:, :2].argmax(1), output[:, 2:7].argmax(1), output[:, 7:].argmax(1)], axis=1)
    assert np.array_equal(actions, model.predict(observations, deterministic=True)[0])


@pytest.mark.parametrize("head", [ActionHead("argmax", segments=(2, 3)), ActionHead("binary")])
def test_sampled_actions_have_the_distribution_of_the_scores(head: ActionHead):
    scores = np.array([0.5, -0.5, 1.0, 0.0, -1.0] if head.segments else [0.5, -1.0, 0.1], np.float32)
    if head.segments:
        chances = [softmax(scores[:2].astype(float)), softmax(scores[2:].astype(float))]
    else:
        chances = [np.array([1 - p, p]) for p in expit(scores.astype(float))]
    number = 20_000
    generators = [np.random.default_rng(seed) for seed in range(number)]
    drawn = head(np.tile(scores, (number, 1)), generators)
    cells = list(itertools.product(*(range(len(p)) for p in chances)))  # numbers of one action do not depend on another
    counts = [int((drawn == cell).all(axis=1).sum()) for cell in cells]
    joint = [float(np.prod([p[i] for p, i in zip(chances, cell, strict=True)])) for cell in cells]
    assert sum(counts) == number
    assert chisquare(counts, number * np.array(joint)).pvalue > 0.01
    alone = head(scores[None], generators[:1])  # of a generator that has gone on
    again = [np.random.default_rng(seed) for seed in range(3)]
    assert np.array_equal(head(np.tile(scores, (3, 1)), again), drawn[:3])
    assert alone.shape == (1, drawn.shape[1])


def test_the_distance_of_actions_counts_each_number_that_differs():
    exact, actions = np.array([[1, 0, 2], [0, 4, 1]]), np.array([[1, 3, 2], [0, 4, 1]])
    assert ActionHead("argmax", segments=SEGMENTS).distance(exact, actions).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert ActionHead("binary").distance(np.float32([[1, 0]]), np.float32([[0, 0]])).tolist() == [[1, 0]]
    assert ActionHead("argmax").distance(np.array([1, 2]), np.array([1, 3])).tolist() == [[0], [1]]


@pytest.mark.parametrize("head", [ActionHead("argmax", segments=(2, 4)), ActionHead("binary")])
def test_the_gradient_of_the_matching_loss_is_the_difference_of_each_number_s_probabilities(head: ActionHead):
    policy = dataclasses.replace(networks.dense([4, 8, 6]), head=head)
    rng = np.random.default_rng(0)
    y, t = (rng.normal(size=(7, 6)) for _ in range(2))
    student = torch.tensor(y, requires_grad=True)
    loss = loss_of(policy, torch.tensor(t))
    loss(student, torch.tensor(t)).backward()

    def chance(scores: Any) -> Any:
        parts = (scores[:, :2], scores[:, 2:])
        return np.concatenate([softmax(p, axis=1) for p in parts], axis=1) if head.segments else expit(scores)

    assert student.grad is not None
    np.testing.assert_allclose(student.grad.numpy(), (chance(y) - chance(t)) / 7, atol=1e-12)
    assert float(loss(torch.tensor(t), torch.tensor(t))) == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_two_bits_learn_what_the_float_policy_does(trained: Any):
    model, _, agent, _ = trained
    rng = np.random.default_rng(0)
    observations, fresh = (rng.uniform(-1, 1, (size, 3)).astype(np.float32) for size in (2_000, 500))
    expected = model.predict(fresh, deterministic=True)[0]

    def equal(small: Agent) -> float:
        return float((small.predict(fresh)[0] == expected).mean())

    taught = agent.distill(2, rounds=1, updates=300, observations=observations).agent
    assert equal(taught) >= equal(agent.quantize("int2e8", observations=observations))
    assert equal(taught) > 0.8


@pytest.mark.parametrize(("head", "message"), [
    (ActionHead("argmax", segments=(2, 2)), "output is (6,), but the action head expects (4,)"),
    (ActionHead("argmax", segments=(6, 0)), "segments (6, 0) must each have one score or more"),
    (ActionHead("argmax", segments=(7, -1)), "segments (7, -1) must each have one score or more"),
    (ActionHead("binary", segments=(3, 3)), "segments (3, 3) must each have one score or more"),
])  # fmt: skip
def test_segments_that_are_not_those_of_the_output_are_refused_in_one_line(head: ActionHead, message: str):
    with pytest.raises(QuarlError, match=re.escape(message)):
        dataclasses.replace(networks.dense([4, 8, 6]), head=head)


@pytest.mark.parametrize("change", [{"segments": [2, 3]}, {"segments": [5, 0]}, {"segments": 5}, {"segments": ["5"]},
                                    {"kind": "binary"}, {"segments": [2**40, 5 - 2**40]}])  # fmt: skip
def test_a_file_whose_segments_are_unsound_is_refused_in_one_line(change: dict[str, Any], monkeypatch: Any):
    policy = dataclasses.replace(networks.dense([4, 8, 6]), head=ActionHead("argmax", segments=(2, 4)))
    write = json.dumps

    def changed(manifest: dict[str, Any], **options: Any) -> str:
        return write(
            {**manifest, "head": {**manifest["head"], **change}} if "head" in manifest else manifest, **options
        )

    monkeypatch.setattr(json, "dumps", changed)
    data = artifact.to_bytes(policy)
    with pytest.raises(QuarlError):
        artifact.from_bytes(data, "p.quarl")


@pytest.mark.parametrize(("head", "version"), [
    (ActionHead("argmax"), 1),
    (ActionHead("argmax", start=3), 1),
    (ActionHead("binary"), 1),  # which older ones refuse by its kind
    (ActionHead("argmax", segments=(6,)), 3),
    (ActionHead("argmax", start=3, zero_based=True), 3),
])  # fmt: skip
def test_a_file_names_the_oldest_version_that_reads_its_head(head: ActionHead, version: int):
    data = artifact.to_bytes(dataclasses.replace(networks.dense([4, 8, 6]), head=head))
    assert f'\\"version\\":{version},'.encode() in data
    assert artifact.from_bytes(data, "p").head.segments == head.segments
    assert artifact.from_bytes(data, "p").head.zero_based == head.zero_based


def test_a_head_that_does_not_fit_the_action_space_is_refused_in_one_line():
    numbers = dataclasses.replace(networks.dense([3, 8, 10]), head=ActionHead("argmax", segments=(2, 3, 5)))
    bits = dataclasses.replace(networks.dense([3, 8, 4]), head=ActionHead("binary"))
    plain = networks.dense([3, 8, 10])
    for policy, env_id, words in [
        (
            numbers,
            "Numbers-v0",
            "(3 numbers, each one of 2, 3, 5) are not those of Numbers-v0 (MultiDiscrete([2 5 3]))",
        ),
        (plain, "Numbers-v0", "(10 discrete ones from 0) are not those of Numbers-v0"),
        (bits, "Bits-v0", "(4 bits) are not those of Bits-v0 (MultiBinary(3))"),
        (numbers, "Bits-v0", "(3 numbers, each one of 2, 3, 5) are not those of Bits-v0"),
    ]:
        with pytest.raises(QuarlError, match=re.escape(words)):
            Agent(policy).evaluate(episodes=1, env_id=env_id)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("env_id", SPACES)
def test_they_are_trained_for_integers_too(algo: str, env_id: str, tmp_path: Path):
    row = train(tmp_path, algo, env_id, 256, "--qat", "8", "--quant-delay", "128")
    assert row["precision"] == "w8a8"
    (folder,) = (tmp_path / "logs" / algo).iterdir()
    agent = quarl.load(folder)
    assert agent.policy.head.kind == ("argmax" if env_id == "Numbers-v0" else "binary")
    assert agent.policy.head.segments == (SEGMENTS if env_id == "Numbers-v0" else ())


@pytest.mark.parametrize(("words", "reason"), [
    (["train", "--algo", "dqn"], "dqn needs a discrete action space, of one number; use ppo or a2c"),
    (["train", "--algo", "dqn", "--qat", "8"], "dqn needs a discrete action space, of one number; use ppo or a2c"),
    (["train", "--algo", "sac"], "sac needs a continuous action space; use ppo or a2c"),
    (["actorq", "--algo", "dqn"], "dqn needs a discrete action space, of one number"),
])  # fmt: skip
@pytest.mark.parametrize("env_id", SPACES)
def test_what_cannot_learn_them_is_refused_before_anything_trains(
    words: list[str], reason: str, env_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    monkeypatch.chdir(tmp_path)
    assert reason in refused(capsys, *words, "--env", env_id, "-n", "100")
    assert not [*tmp_path.iterdir()]


def test_an_agent_whose_numbers_begin_elsewhere_is_handed_to_its_environment_as_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    played: list[int] = []

    class Shifted(Match):
        action_space = spaces.Discrete(3, start=5)

        def __init__(self, render_mode: str | None = None) -> None: ...

        def step(self, action: Any) -> Any:
            played.append(int(action))
            return self.look(), float(action), False, False, {}

    monkeypatch.setitem(registry, "Shifted-v0", EnvSpec("Shifted-v0", Shifted, max_episode_steps=20))
    model = PPO("MlpPolicy", "Shifted-v0", n_steps=64, seed=0, device="cpu").learn(64)
    model.save(tmp_path / "Shifted-v0.zip")
    assert set(played) == {0, 1, 2}
    observations = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    for agent in (quarl.load(tmp_path / "Shifted-v0.zip"), quarl.from_sb3(model)):
        agent.save(tmp_path / "agent.quarl")
        for same in (agent, quarl.load(tmp_path / "agent.quarl")):
            assert np.array_equal(same.predict(observations)[0], model.predict(observations, deterministic=True)[0])
            same.evaluate(episodes=3, env_id="Shifted-v0", stochastic=True)
            assert set(played[-60:]) == {0, 1, 2}
    said = capsys.readouterr().err
    assert "begin at 5, but Stable-Baselines3 counts from 0: it gets numbers from 0" in said
    module = torch.nn.Linear(3, 3)
    quarl.from_module(module, Shifted.observation_space, Shifted.action_space).evaluate(
        episodes=3, env_id="Shifted-v0", stochastic=True
    )
    assert set(played[-60:]) == {5, 6, 7}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "world"),
    [
        (PPO, envs.IdentityEnvMultiDiscrete(3)),
        (PPO, envs.IdentityEnvMultiBinary(3)),
        (MaskablePPO, InvalidActionEnvMultiDiscrete([2, 4, 3], n_invalid_actions=4)),
        (MaskablePPO, InvalidActionEnvMultiBinary(3, n_invalid_actions=2)),
    ],
)
def test_agents_of_the_libraries_own_environments_act_and_play_as_there(kind: Any, world: Any, tmp_path: Path):
    gymnasium.register("World-v0", lambda: world)
    world.action_space.seed(0)
    with Threads():
        model = kind("MlpPolicy", world, n_steps=64, n_epochs=5, learning_rate=3e-3, seed=0, device="cpu")
        model.learn(1_500).save(tmp_path / "agent.zip")
    world.action_space.seed(1)
    states = np.array([world.observation_space.sample() for _ in range(2_000)])
    expected = model.predict(states, deterministic=True)[0]
    for agent in (quarl.load(tmp_path / "agent.zip"), quarl.from_sb3(model)):
        for engine in ("reference", "litert"):
            assert np.array_equal(agent.predict(states, engine=engine)[0], expected)
        # what an action is worth is random here: so is which state follows
        world.action_space.seed(2)
        np.random.seed(2)
        ours = agent.evaluate(episodes=2, env=world, env_id="World-v0", stochastic=False).returns
        world.action_space.seed(2)
        np.random.seed(2)
        theirs = []
        for _ in range(2):
            state, total = world.reset()[0], 0.0
            for _ in range(100):
                masks = {"action_masks": world.action_masks()} if kind is MaskablePPO else {}
                state, reward, *_ = world.step(model.predict(state, deterministic=True, **masks)[0])
                total += reward
            theirs.append(total)
        assert ours.tolist() == theirs
    assert len(np.unique(expected, axis=0)) > 2
    del gymnasium.registry["World-v0"]


@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("kind", ["clip", "tanh"])
def test_actions_of_several_axes_come_in_their_shape_and_files_give_one_row(kind: Any, shape: Any, tmp_path: Path):
    count = int(np.prod(shape))
    low = -np.linspace(0.1, 0.5, count, dtype=np.float32).reshape(shape)
    module, head = torch.nn.Linear(4, count), ActionHead(kind, low, np.flip(-2 * low).copy())
    agent = quarl.from_module(module, (4,), head)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    with torch.no_grad():
        output = module(torch.as_tensor(x)).numpy().reshape(50, *shape)
    scaled = low + 0.5 * (np.tanh(output) + 1) * (head.high - low) if kind == "tanh" else output
    expected = np.clip(scaled, low, head.high)
    agent.save(tmp_path / "agent.quarl")
    for each in (agent, quarl.load(tmp_path / "agent.quarl")):
        np.testing.assert_allclose(each.predict(x)[0], expected, rtol=0, atol=1e-6)
        assert each.predict(x[0])[0].shape == shape
    agent.save(tmp_path / "agent.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.run(None, {"observation": x})
    np.testing.assert_allclose(given, expected.reshape(50, -1), rtol=0, atol=1e-6)
    assert head.distance(expected, expected + 0.1).shape == (50, count)
    flat = dataclasses.replace(head, low=head.low.reshape(-1), high=head.high.reshape(-1))
    student, teacher = torch.as_tensor(output.reshape(50, -1)), torch.zeros(50, count)
    alike = dataclasses.replace(agent.policy, head=flat)
    assert loss_of(agent.policy, teacher)(student, teacher) == loss_of(alike, teacher)(student, teacher)
    said = contract.contract(agent._quantized(), "onnx", arithmetic="f32-rne", source={"file": "", "sha256": ""})
    assert (said["action"]["shape"], said["action"]["num_outputs"]) == (list(shape), count)
    assert said["action"]["meaning"] == f"its output is the action in one row, within its bounds: reshape it to {shape}"
    read = contract.policy_of(said, "x").head
    np.testing.assert_array_equal([read.low, read.high], [head.low, head.high])


def test_a_module_s_last_tanh_goes_into_a_head_of_several_axes():
    box = spaces.Box(np.float32([[-2, -1]]), np.float32([[2, 1]]))
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), Times(torch.tensor([2.0, 1.0])))
    agent = quarl.from_module(module, (3,), box)
    assert agent.policy.head.kind == "tanh"
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.as_tensor(x)).numpy().reshape(20, 1, 2)
    np.testing.assert_allclose(agent.predict(x)[0], expected, rtol=0, atol=1e-6)


class Times(torch.nn.Module):
    def __init__(self, factor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor
