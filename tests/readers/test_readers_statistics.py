"""Which statistics an agent observed with: found by contents, paired by name, or refused; never ignored in silence."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import quarl
from quarl.__main__ import main
from quarl.errors import QuarlError
from quarl.policy.operators import Normalize
from quarl.readers import find, zoo
from quarl.readers.load import read
from quarl.readers.normalizer import sentence
from sb3_archives import Still, write_run, zipped


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """agent.zip of three observations, and stats.pkl with which it observed."""
    folder = tmp_path_factory.mktemp("made")
    run = write_run(folder)
    (run / "Still-v0.zip").rename(folder / "agent.zip")
    (run / "Still-v0/vecnormalize.pkl").rename(folder / "stats.pkl")
    return folder


def statistics(shape: tuple[int, ...] = (3,), mean: float = 0.0, protocol: int = 4, **options: Any) -> bytes:
    """What VecNormalize saves."""
    env = VecNormalize(DummyVecEnv([lambda: Still(spaces.Box(-1, 1, shape), spaces.Discrete(2))]), **options)
    env.reset()
    if env.norm_obs:
        env.obs_rms.mean = np.full(shape, mean)
    return pickle.dumps(env, protocol)


class ReplayBuffer:
    def __init__(self) -> None:
        self.wrapper = "stable_baselines3.common.vec_env.vec_normalize VecNormalize"


@pytest.fixture
def lay(tmp_path: Path, made: Path):
    """Lays agents (.zip) and statistics (others, with a mean that tells them apart) into a folder; gives its path."""

    def make(*names: str) -> Path:
        for number, name in enumerate(names):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((made / "agent.zip").read_bytes() if path.suffix == ".zip" else statistics(mean=number))
        return tmp_path

    return make


def chosen(agent: Path, normalize: str | None = None) -> str:
    found, _ = zoo.find_statistics(agent, find.settings_folder(agent), normalize)
    return "none" if found is None else found.name


@pytest.mark.parametrize(
    "name",
    [
        *("vec_norm.pkl", "env_stats.pkl", "vec_normalize_env.pkl", "vecnormalize_final.pkl", "a_vec_normalize.pkl"),
        *("../vecnormalize.pkl", "../vec_norm", "stats", "wrapper.pickle", "VecNormalize.pth", "a/whatever.bin"),
    ],
)
def test_the_only_statistics_of_the_only_agent_are_found_under_any_name(lay, name: str):
    folder = lay("run/a.zip", f"run/{name}")
    policy = read(folder / "run/a.zip")
    assert [op.mean.tolist() for op in policy.ops if isinstance(op, Normalize)] == [[1.0, 1.0, 1.0]]
    assert policy.provenance.statistics == str((folder / "run").joinpath(name).resolve())
    assert sentence(policy) == f"observations normalized with {policy.provenance.statistics}"


@pytest.mark.parametrize("protocol", range(6))
def test_statistics_of_every_protocol_are_found(lay, protocol: int):
    folder = lay("a.zip")
    (folder / "norm").write_bytes(statistics(protocol=protocol))
    assert chosen(folder / "a.zip") == "norm"
    assert any(isinstance(op, Normalize) for op in read(folder / "a.zip").ops)


def test_what_is_called_statistics_and_cannot_be_read_is_not_passed_over(lay):
    folder = lay("a.zip")
    (folder / "my_vecnorm.pkl").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(QuarlError, match=r"my_vecnorm\.pkl: not a readable pickle"):
        read(folder / "a.zip")


def test_what_else_lies_beside_an_agent_is_no_matter(lay, tmp_path: Path):
    folder = lay("a.zip", "norm.pkl")
    (folder / "replay_buffer.pkl").write_bytes(pickle.dumps(ReplayBuffer()))
    with (folder / "huge.pkl").open("wb") as file:
        file.truncate(2**40)  # sparse: whoever reads it whole does not come back
    (folder / "cut.pkl").write_bytes(b"\x80\x04\x95")
    (folder / "train_eval_metrics.zip").write_bytes(zipped({"evaluations.npz": b""}))
    (folder / "broken.zip").write_bytes(b"PK\x03\x04")
    (folder / "secret").symlink_to("/proc/self/mem")
    assert chosen(folder / "a.zip") == "norm.pkl"


@pytest.mark.parametrize(
    ("names", "agent", "found"),
    [
        (
            ("m_vecnormalize_1_steps.pkl", "m_vecnormalize_2_steps.pkl", "m_1_steps.zip", "m_2_steps.zip"),
            "m_2_steps",
            1,
        ),
        (("m_vecnormalize_1_steps.pkl", "m_1_steps.zip", "last.zip", "vec_normalize.pkl"), "m_1_steps", 0),
        (("m_vecnormalize_1_steps.pkl", "m_1_steps.zip", "last.zip", "vec_normalize.pkl"), "last", 3),
        (("best_vecnormalize.pkl", "final_vecnormalize.pkl", "best_model.zip", "final_model.zip"), "best_model", 0),
        (("vec_normalize_ppo.pkl", "a2c_vecnorm.pkl", "a2c.zip", "ppo.zip"), "ppo", 0),
        (("x/best/best_model.zip", "x/vecnormalize.pkl"), "x/best/best_model", 1),
        (("a.zip", "b.zip", "b_stats.pkl"), "a", None),
        (("one/a.zip", "one/vecnormalize.pkl", "b/b.zip"), "b/b", None),
    ],
)
def test_names_pair_several_as_the_callbacks_of_stable_baselines3_make_them(lay, names, agent: str, found: int | None):
    expected = "none" if found is None else Path(names[found]).name
    assert chosen(lay(*names) / f"{agent}.zip") == expected


@pytest.mark.parametrize(
    ("names", "agent", "said"),
    [
        (("a.zip", "one.pkl", "two.pkl"), "a", ("one.pkl", "two.pkl")),
        (("a.zip", "vecnormalize.pkl", "vec_normalize.pkl"), "a", ("vecnormalize.pkl", "vec_normalize.pkl")),
        (("a.zip", "b.zip", "env.pkl"), "a", ("env.pkl", "b.zip")),
        (
            ("best/best_model.zip", "vecnormalize.pkl", "final.zip"),
            "best/best_model",
            ("vecnormalize.pkl", "final.zip"),
        ),
        (("saved/a.zip", "saved/b.zip", "norm.pkl"), "saved/a", ("norm.pkl", "b.zip")),
        (
            ("best_model.zip", "m_1_steps.zip", "m_vecnormalize_1_steps.pkl"),
            "best_model",
            ("m_vecnormalize_1_steps.pkl",),
        ),
    ],
)
def test_where_a_choice_is_left_it_is_the_user_s(lay, names, agent: str, said: tuple[str, ...]):
    path = lay(*names) / f"{agent}.zip"
    with pytest.raises(QuarlError, match="--normalize FILE or --normalize none") as caught:
        read(path)
    assert all(name in str(caught.value) for name in said)
    assert chosen(path, "none") == "none"
    assert "(as asked): observations are not normalized" in sentence(read(path, normalize="none"))
    file = next(path.parents[0].rglob("*.pkl"), None) or next(path.parents[1].glob("*.pkl"))
    assert any(isinstance(op, Normalize) for op in read(path, normalize=str(file)).ops)


@pytest.mark.parametrize("document", ["config.yml", "args.yml", "a/config.yml", "a/args.yml"])
@pytest.mark.parametrize("said", ["normalize: false", "hyperparams: {normalize: false}"])
def test_the_run_s_own_documents_decide_first(lay, document: str, said: str):
    folder = lay("a.zip", "vecnormalize.pkl", "a/vecnormalize.pkl")
    (folder / document).write_text(said)
    policy = read(folder / "a.zip")
    assert not any(isinstance(op, Normalize) for op in policy.ops)
    assert sentence(policy) == (
        f"no VecNormalize statistics ({folder / document} says normalize: false): observations are not normalized"
    )


def test_a_stranger_s_configuration_is_no_matter(lay):
    folder = lay("a.zip", "norm.pkl")
    (folder / "config.yml").write_text("model: !mine {layers: 3}")
    assert chosen(folder / "a.zip") == "norm.pkl"


def test_statistics_that_do_not_fit_are_refused_by_name(lay, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = lay("a.zip")
    (folder / "other.pkl").write_bytes(statistics((5,)))
    assert main(["eval", str(folder / "a.zip"), "--env", "CartPole-v1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the statistics of {folder / 'other.pkl'} have shape (5,), but the policy observes (3,)" in line
    (folder / "other.pkl").write_bytes(statistics(norm_obs=False))
    assert "other.pkl normalizes rewards only" in sentence(read(folder / "a.zip"))
    for wrong, word in (("absent.pkl", "no file"), ("a.zip", "not a readable pickle")):
        with pytest.raises(QuarlError, match=word):
            read(folder / "a.zip", normalize=folder / wrong)


def test_a_saved_agent_says_and_keeps_where_its_statistics_are_from(lay, capsys: pytest.CaptureFixture[str]):
    folder = lay("a.zip", "norm.pkl")
    agent = quarl.load(folder / "a.zip")
    agent.save(folder / "a.safetensors")
    (line,) = capsys.readouterr().err.splitlines()
    said = f"observations normalized with {folder / 'norm.pkl'}"
    assert line == f"quarl: a.safetensors: {said}"
    assert sentence(read(folder / "a.safetensors")) == said
    with pytest.raises(QuarlError, match="drop --normalize"):
        quarl.load(folder / "a.safetensors", normalize="none")
    raw = quarl.load(folder / "a.zip", normalize="none")
    raw.save(folder / "raw.tflite")
    assert "no VecNormalize statistics (as asked)" in capsys.readouterr().err
    row = np.float32([[0.2, -0.7, 0.9]])
    shifted = quarl.load(folder / "a.zip", normalize=folder / "norm.pkl")
    assert not np.array_equal(shifted.predict(row)[0], raw.predict(row)[0])
    assert np.array_equal(shifted.predict(row)[0], agent.predict(row)[0])
    assert "stable_baselines3.common.vec_env.vec_normalize" in sys.modules  # for the test's own files, not by reading


def test_agents_of_stable_baselines_2_have_theirs_beside_them_or_are_asked(agents: Path, tmp_path: Path):
    source = agents / "sb2/ppo2"
    (tmp_path / "walker.pkl").write_bytes((source / "BipedalWalker-v2.pkl").read_bytes())
    (tmp_path / "obs_rms.pkl").write_bytes((source / "BipedalWalker-v2/obs_rms.pkl").read_bytes())
    found, zoo_s = read(tmp_path / "walker.pkl"), read(source / "BipedalWalker-v2.pkl")
    means = [next(op for op in policy.ops if isinstance(op, Normalize)).mean for policy in (found, zoo_s)]
    assert np.array_equal(*means)
    (tmp_path / "hopper.pkl").write_bytes((source / "HopperBulletEnv-v0.pkl").read_bytes())
    fitting = read(tmp_path / "walker.pkl")  # the other's observations are of another shape
    assert np.array_equal(next(op for op in fitting.ops if isinstance(op, Normalize)).mean, means[0])
    assert not any(isinstance(op, Normalize) for op in read(tmp_path / "hopper.pkl").ops)
    (tmp_path / "runner.pkl").write_bytes((source / "BipedalWalker-v2.pkl").read_bytes())
    with pytest.raises(QuarlError, match=r"obs_rms\.pkl may also belong to runner\.pkl; .*--normalize FILE"):
        read(tmp_path / "walker.pkl")


@pytest.mark.parametrize(("shape", "whose"), [((3,), "ab"), ((5,), "c"), ((7,), ""), ((1,), "abc")])
def test_statistics_beside_several_agents_are_matched_by_shape(lay, shape: tuple[int, ...], whose: str):
    """Agents a and b observe 3 numbers, c five; one number may be a frame of each."""
    folder = lay("a.zip", "b.zip")
    PPO("MlpPolicy", Still(spaces.Box(-1, 1, (5,)), spaces.Discrete(2)), device="cpu").save(folder / "c.zip")
    (folder / "norm.pkl").write_bytes(statistics(shape))
    for name in "abc":
        if name in whose and len(whose) > 1:
            with pytest.raises(QuarlError, match=r"norm\.pkl may also belong to .*; choose with --normalize FILE"):
                chosen(folder / f"{name}.zip")
        else:
            assert chosen(folder / f"{name}.zip") == ("norm.pkl" if name in whose else "none")
    (folder / "more.pkl").write_bytes(statistics((11,)))
    (folder / "b.zip").unlink()
    (folder / "c.zip").unlink()
    assert chosen(folder / "a.zip") == ("norm.pkl" if shape in ((3,), (1,)) else "none")


def test_training_takes_statistics_with_the_agent_they_are_of(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--env", "CartPole-v1", "--normalize", "none"]) == 2
    assert "--normalize requires -i MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["agent_vecnormalize.pkl", "vecnormalize.pkl", "agent/vecnormalize.pkl", "agent/config.yml"]
)
def test_a_pipe_beside_an_agent_is_refused_and_neither_opened_nor_passed_over(name: str, made: Path, tmp_path: Path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent.zip").write_bytes((made / "agent.zip").read_bytes())
    os.mkfifo(tmp_path / name)
    with pytest.raises(QuarlError, match=f"{name} is not a regular file"):
        read(tmp_path / "agent.zip")
    os.mkfifo(tmp_path / "pipe")
    for path, normalize in ((tmp_path / "agent.zip", tmp_path / "pipe"), (tmp_path / "pipe", None)):
        with pytest.raises(QuarlError, match="is not a regular file"):
            read(path, normalize=normalize)
