"""`quarl train` on pixels: the zoo's entry for all games, whole games in evaluation, and integers afterwards."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from training_runs import same, session, weights

import require
from quarl import engines
from quarl.calibration import quantize
from quarl.cli import main
from quarl.envs.rollout import play
from quarl.evaluation import IMAGE_INTERVAL, evaluate, record
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import QuantSpec
from quarl.readers import load
from quarl.runs import checkpoint

pytestmark = pytest.mark.slow

require.module("ale_py")
require.module("cv2")
require.module("rl_zoo3")

PONG = "PongNoFrameskip-v4"
ATARI = "stable_baselines3.common.atari_wrappers.AtariWrapper"
STACK = "stable_baselines3.common.vec_env.VecFrameStack"
SMALL = {
    "ppo": ["n_steps:16", "batch_size:16", "n_epochs:1"],
    "a2c": ["n_steps:8"],
    "dqn": ["learning_starts:24", "buffer_size:100", "batch_size:8", "target_update_interval:16"],
}
STEPS = {"ppo": 64, "a2c": 64, "dqn": 64}
SHORT = "env_kwargs:dict(max_num_frames_per_episode=400)"
"""A hundred steps, so that a game is over soon."""


def words(algo: str, *more: Any) -> list[str]:
    quiet = ["--eval-freq", "0", "--eval-episodes", "1", "--save-freq", "0", "--threads", "1"]
    n_envs = [] if algo == "dqn" else ["--n-envs", "2"]
    given = ["train", "--algo", algo, "--env", PONG, "-n", str(STEPS[algo]), *quiet, *n_envs]
    return [*given, *map(str, more), "--params", *SMALL[algo], SHORT]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each algorithm, trained for a moment."""
    folder = tmp_path_factory.mktemp("atari")
    found = {}
    for algo in SMALL:
        assert main([*words(algo), "-f", str(folder / "logs"), "--json", str(folder / f"{algo}.json")]) == 0
        found[algo] = folder / "logs" / algo / f"{PONG}_1"
    return found


@pytest.mark.parametrize("algo", SMALL)
def test_every_learner_of_discrete_actions_trains_on_pixels_with_the_zoo_s_entry(algo: str, runs: dict[str, Path]):
    (row,) = json.loads((runs[algo].parents[2] / f"{algo}.json").read_text())["rows"]
    assert (row["algo"], row["env_id"], row["timesteps"]) == (algo, PONG, STEPS[algo])
    assert row["updates"] > 0
    assert row["mean"] <= 0  # points of a game that nobody has learnt
    config = yaml.safe_load((runs[algo] / PONG / "config.yml").read_text())
    assert (config["frame_stack"], config["policy"], config["env_wrapper"]) == (4, "CnnPolicy", [ATARI])
    policy = load.read(runs[algo], algo)
    assert (policy.observation_shape, policy.observation_dtype) == ((4, 84, 84), "uint8")
    assert policy.provenance.wrappers == ((ATARI, {}), (STACK, {"n_stack": 4}))
    assert policy.provenance.stochastic == (algo != "dqn")  # the zoo's convention
    assert [type(op).__name__ for op in policy.linear] == ["Conv2d"] * 3 + ["Dense"] * 2


def test_the_last_evaluation_is_of_whole_games_and_comes_back(runs: dict[str, Path]):
    (row,) = json.loads((runs["dqn"].parents[2] / "dqn.json").read_text())["rows"]
    policy = quantize(load.read(runs["dqn"]), QuantSpec.parse("fp32"))
    played = evaluate(policy, episodes=1, seed=0)
    assert played.returns.mean() == row["mean"]
    assert 90 <= played.lengths[0] <= 100


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_goes_on_from_its_checkpoint_with_every_frame_of_its_replay(algo: str, runs: dict[str, Path]):
    folder = runs[algo].parents[1]
    saved = checkpoint.load_latest(runs[algo])
    if algo == "dqn":
        assert saved.arrays["replay/frames"].shape == (STEPS[algo], 1, 84, 84)
        assert "replay/observations" not in saved.arrays
    again = session("train", "--resume", "--algo", algo, "--env", PONG, "-f", folder, "-n", 128)
    assert again.model.num_timesteps == STEPS[algo]
    assert same(
        weights(again.model),
        {name.removeprefix("policy/"): array for name, array in saved.arrays.items() if name.startswith("policy/")},
    )
    if algo == "dqn":
        buffer = again.model.replay_buffer
        assert buffer.observations[10, 0, :3].any()
        assert np.array_equal(buffer.observations[11, 0, :3], buffer.observations[10, 0, 1:])
        assert np.array_equal(buffer.next_observations[10], buffer.observations[11])
    assert again.run(lambda label, done: None).exit_code == 0
    assert again.model.num_timesteps == 128


@pytest.fixture(scope="module")
def observations(runs: dict[str, Path]) -> np.ndarray:
    """What the PPO agent meets in its own short games."""
    exact = quantize(load.read(runs["ppo"]), QuantSpec.parse("fp32"))
    engine = engines.load(exact, "litert", batch=4)
    found = record(exact, engine=engine, num=48, min_episodes=4)
    assert found.shape == (48, 4, 84, 84)
    assert found.dtype == np.uint8
    return found


def test_images_are_recorded_at_intervals_so_that_long_games_fit_in_memory(observations: np.ndarray):
    # two images that are 8 steps apart share no frame
    assert IMAGE_INTERVAL > 4
    assert not any(np.array_equal(one[1:], other[:3]) for one, other in pairwise(observations))


def test_of_images_every_eighth_is_kept(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    exact = quantize(load.read(runs["ppo"]), QuantSpec.parse("fp32"))
    kept = []

    def recorded(*told):
        for episode in play(*told):
            kept.append((len(episode.observations), -(-episode.length // IMAGE_INTERVAL)))
            yield episode

    monkeypatch.setattr("quarl.evaluation.play", recorded)
    record(exact, engine=engines.load(exact, "litert", batch=1), num=4, min_episodes=1)
    assert kept
    assert all(found == expected > 1 for found, expected in kept)


@pytest.mark.parametrize("bits", ["8", "4"])
def test_a_trained_network_s_integers_are_the_reference_s_bit_for_bit(
    bits: str, runs: dict[str, Path], observations: np.ndarray
):
    policy = quantize(load.read(runs["ppo"]), QuantSpec.parse(bits, scheme="per-channel", mode="static"), observations)
    rows = observations[:16]
    exact = engines.run_all(engines.load(policy, "reference", batch=8), rows)
    for name in ("litert", "onnx"):
        engine = engines.load(policy, name, batch=8)
        assert np.array_equal(engines.run_all(engine, rows), exact)
        assert engine.measured
    dynamic = quantize(load.read(runs["ppo"]), QuantSpec.parse(bits, scheme="bias-corrected"), observations)
    expected = engines.run_all(engines.load(dynamic, "reference", batch=8), rows)
    assert np.array_equal(engines.run_all(engines.load(dynamic, "litert", batch=8), rows), expected)


def test_a_quantised_agent_plays_on_integer_kernels_from_its_own_file(
    runs: dict[str, Path], observations: np.ndarray, tmp_path: Path
):
    policy = quantize(load.read(runs["ppo"]), QuantSpec.parse("8", scheme="per-channel", mode="static"), observations)
    artifact.write(policy, tmp_path / "pong.quarl")
    again = load.read(tmp_path / "pong.quarl")
    assert isinstance(again, QuantizedPolicy)
    assert again.provenance == policy.provenance
    played = evaluate(again, episodes=1, seed=3)
    assert played.measured
    assert played.returns.tolist() == evaluate(policy, episodes=1, seed=3, engine="reference").returns.tolist()


def test_fine_tuning_for_a_precision_leaves_integers(runs: dict[str, Path], tmp_path: Path):
    more = ["--qat", "8", "--quant-delay", "32", "-i", runs["ppo"] / f"{PONG}.zip", "-f", tmp_path / "logs"]
    assert main(words("ppo", *more)) == 0
    policy = load.read(tmp_path / f"logs/ppo/{PONG}_1/{PONG}.quarl")
    assert isinstance(policy, QuantizedPolicy)
    assert policy.provenance.wrappers == ((ATARI, {}), (STACK, {"n_stack": 4}))
    engine = engines.load(policy, "litert", batch=1)
    assert engine.measured
