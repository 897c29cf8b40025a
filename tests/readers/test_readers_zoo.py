"""Zoo folders: which zip is meant, and what the files beside it say."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from quarl.errors import QuarlError
from quarl.policy.graph import Provenance
from quarl.policy.operators import Normalize
from quarl.readers import find, zoo


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def settings(tmp_path: Path, config: str = "", args: str = "") -> tuple[Provenance, Normalize | None]:
    make(tmp_path / "Env-v0_1", "Env-v0.zip", "Env-v0/config.yml", "Env-v0/args.yml")
    (tmp_path / "Env-v0_1/Env-v0/config.yml").write_text(config or "{}")
    (tmp_path / "Env-v0_1/Env-v0/args.yml").write_text(args or "{}")
    return zoo.read_settings(tmp_path / "Env-v0_1/Env-v0.zip")


def refusal(tmp_path: Path, config: str) -> str:
    with pytest.raises(QuarlError) as caught:
        settings(tmp_path, config)
    assert "config.yml" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "found", "others"),
    [
        ("Env-v0", "Env-v0_10/Env-v0.zip", ("Env-v0_2/Env-v0.zip", "Env-v0Longer_11/Env-v0Longer.zip")),
        ("ALE/Pong-v5", "ALE-Pong-v5_1/ALE-Pong-v5.zip", ()),
        ("Env-v0", "Env-v0_1/best_model.zip", ()),
    ],
    ids=["the highest number is the latest run", "a slash is a dash", "an unfinished run has its best model"],
)
def test_the_agent_of_an_environment_is_found(env_id: str, found: str, others: tuple[str, ...], tmp_path: Path):
    make(tmp_path / "ppo", found, *others)
    assert find.in_zoo(tmp_path, "ppo", env_id) == tmp_path / "ppo" / found


def test_a_missing_agent_lists_those_that_are_there(tmp_path: Path):
    make(tmp_path, "ppo/CartPole-v1_1/CartPole-v1.zip")
    with pytest.raises(QuarlError, match=r"it has CartPole-v1$"):
        find.in_zoo(tmp_path, "ppo", "Acrobot-v1")
    with pytest.raises(QuarlError, match=r"has ppo$"):
        find.in_zoo(tmp_path, "dqn", "CartPole-v1")
    with pytest.raises(QuarlError, match="cannot list"):
        find.in_zoo(tmp_path / "absent", "dqn", "CartPole-v1")


def test_a_lone_zip_is_named_after_its_environment_or_nothing(tmp_path: Path):
    assert zoo.read_settings(tmp_path / "CartPole-v1.zip")[0].env_id == "CartPole-v1"
    assert zoo.read_settings(tmp_path / "my_agent.zip") == (Provenance(), None)


def test_an_ordered_dict_of_pairs_is_read_as_the_mapping_it_spells(tmp_path: Path):
    pairs = "!!python/object/apply:collections.OrderedDict\n- - - {}\n    - {}\n"
    found, _ = settings(
        tmp_path,
        pairs.format("env_wrapper", "sb3_contrib.common.wrappers.TimeFeatureWrapper"),
        pairs.format("env", "Other-v3"),
    )
    assert found.wrappers == (("sb3_contrib.common.wrappers.TimeFeatureWrapper", {}),)
    assert found.env_id == "Other-v3"


def test_wrappers_are_listed_from_the_inside_out_with_their_arguments(tmp_path: Path):
    config = "env_wrapper: [a.B, {c.D: {skip: 4}}]\nvec_env_wrapper: e.F\nframe_stack: 4"
    assert settings(tmp_path, config)[0].wrappers == (
        ("a.B", {}),
        ("c.D", {"skip": 4}),
        ("e.F", {}),
        (zoo.VEC_FRAME_STACK, {"n_stack": 4}),
    )


def test_arguments_given_in_training_win_over_the_configuration(tmp_path: Path):
    config = "env_kwargs: {gravity: -5.0}"
    assert settings(tmp_path, config)[0].env_kwargs == {"gravity": -5.0}
    assert settings(tmp_path, config, "env_kwargs: {gravity: -3.0}")[0].env_kwargs == {"gravity": -3.0}
    assert settings(tmp_path, config, "env_kwargs: null")[0].env_kwargs == {"gravity": -5.0}


@pytest.mark.parametrize("value", ["false", "\"{'norm_obs': False}\"", '"dict(norm_obs=False, norm_reward=True)"'])
def test_observations_that_were_not_normalised_need_no_statistics(tmp_path: Path, value: str):
    assert settings(tmp_path, f"normalize: {value}")[1] is None


@pytest.mark.parametrize("value", ["true", "\"{'norm_reward': False}\"", '"dict(norm_obs=True)"', "{norm_obs: true}"])
def test_statistics_that_are_missing_are_missed(tmp_path: Path, value: str):
    assert "vecnormalize.pkl" in refusal(tmp_path, f"normalize: {value}")


def test_statistics_of_the_older_zoo_get_the_wrapper_s_defaults(tmp_path: Path):
    path = make(tmp_path, "Env-v0_1/Env-v0/obs_rms.pkl") / "Env-v0_1/Env-v0/obs_rms.pkl"
    path.write_bytes(pickle.dumps(RunningMeanStd()))
    found = settings(tmp_path, "normalize: true")[1]
    assert isinstance(found, Normalize)
    assert (found.mean.tolist(), found.variance.tolist(), found.clip) == ([1.0, 2.0], [3.0, 4.0], 10.0)


class RunningMeanStd:
    def __init__(self) -> None:
        self.mean, self.var, self.count = np.array([1.0, 2.0]), np.array([3.0, 4.0]), 5.0


def test_folders_are_called_as_in_the_zoo():
    assert find.folder_name("ALE/Pong-v5") == "ALE-Pong-v5"
    assert find.folder_name("my.envs:Walk-v0") == "Walk-v0"


def test_a_zip_unpacked_beside_itself_is_no_folder_of_settings(tmp_path: Path):
    make(tmp_path, "ppo-Env-v0.zip", "ppo-Env-v0/data", "ppo-Env-v0/policy.pth")
    assert find.settings_folder(tmp_path / "ppo-Env-v0.zip") is None
    assert zoo.read_settings(tmp_path / "ppo-Env-v0.zip")[0].env_id == "Env-v0"
    (tmp_path / "ppo-Env-v0/config.yml").write_text("normalize: false\n")
    assert zoo.read_settings(tmp_path / "ppo-Env-v0.zip")[0].env_id == "Env-v0"


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ("a: !!python/object/apply:os.system ['touch {canary}']", "os.system"),
        ("a: !!python/name:os.system (x)", "os.system"),
        ("a: !!python/object/new:os.system ['touch {canary}']", "os.system"),
        ("a: !!python/module:os", "os"),
        ('normalize: \'__import__("os").system("touch {canary}")\'', "normalize"),
        ('normalize: \'dict(norm_obs=open("{canary}", "w"))\'', "normalize"),
        ("normalize: '" + "(" * 900 + "'", "normalize"),
        ("normalize: !!python/name:os.system", "normalize"),
        ("env_wrapper: 3", "env_wrapper"),
        ("env_wrapper: {a.B: [1]}", "env_wrapper"),
        ("frame_stack: many", "frame_stack"),
        ("frame_stack: 100000000", "frame_stack"),
        ("[1, 2]", "list"),
        ("1: 2", "not settings by name"),
        ("a: [", "not YAML"),
        ("a: 2001-99-99", "not YAML"),
        ("a: !!python/object/apply:collections.OrderedDict [1]", "not YAML"),
        ("a: !!python/object/apply:collections.OrderedDict {b: 1}", "expected a sequence node"),
        ("a: &a [*a]", "nested"),
        (
            "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]",
            "values",
        ),
        ("[" * 5000, "nested"),
        ("a: &a {b: 1}\nc: {<<: [*a, *a]}", "merge"),
        ("# " + "x" * 70000, "65,536"),
    ],
)
def test_a_configuration_is_data_or_is_refused_in_one_line(tmp_path: Path, config: str, word: str):
    canary = tmp_path / "canary"
    assert word in refusal(tmp_path, config.replace("{canary}", str(canary)))
    assert not canary.exists()


def test_only_image_agents_that_choose_among_logits_are_sampled():
    assert zoo.samples_actions("ppo", "BreakoutNoFrameskip-v4")
    assert zoo.samples_actions("a2c", "ALE/Pong-v5")
    assert not zoo.samples_actions("dqn", "BreakoutNoFrameskip-v4")
    assert not zoo.samples_actions("ppo", "CartPole-v1")
