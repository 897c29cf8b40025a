"""Whatever is wrong with a saved agent, the reader says so in one line and runs none of it."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl.errors import QuarlError
from quarl.policy.operators import Normalize
from quarl.readers import load, weights_only
from sb3_archives import (
    Change,
    blob,
    data_with,
    edit,
    kwargs_with,
    saved,
    space,
    tensors_with,
    unzipped,
    write_run,
    zipped,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("ppo"))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / whole.name))


def poison(state: dict[str, Any]) -> None:
    state["action_net.weight"][0, 0] = float("nan")


def test_inspect_names_an_agent_of_sbx(run: Path):
    def change(members: dict[str, bytes]) -> None:
        members["pytorch_variables.pth"] = members.pop("policy.pth")
        data_with(policy_class={"__module__": "sbx.sac.policies"})(members)

    edit(run, change)
    with pytest.raises(QuarlError, match="is an agent of SBX"):
        weights_only.read_model(run / "Still-v0.zip")


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.update({new: state.pop(old)})


class Evil:
    """Unpickling it would create the file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.canary), "w")


def dict_of(value: Any) -> Any:
    """A Dict space whose spaces are something else."""
    tampered = spaces.Dict(a=spaces.Discrete(2))
    tampered.spaces = value
    return space(tampered)


def bounds(**changes: Any) -> Any:
    """A Box whose bounds are something else."""
    tampered = spaces.Box(0, 1, (2,))
    vars(tampered).update(changes)
    return space(tampered)


def refusal(run: Path, change: Change | None = None) -> str:
    if change is not None:
        edit(run, change)
    with pytest.raises(QuarlError) as caught:
        load.read(run / "Still-v0.zip")
    text = str(caught.value)
    assert "\n" not in text
    assert str(run) in text
    assert len(text) < len(str(run)) + 300
    return text


CHANGES: list[tuple[str, Change, str]] = [
    ("no data", lambda m: m.pop("data"), "no member 'data'"),  # type: ignore[arg-type, return-value]
    ("NaN", tensors_with(poison), "'action_net.weight' holds NaN"),
    ("a list of tensors", lambda m: m.update({"policy.pth": saved([torch.ones(1)])}), "holds a list"),
    ("text for a tensor", tensors_with(lambda s: s.update(action_net="x")), "is a str"),
    ("expanded", tensors_with(lambda s: s.update(x=torch.ones(1).expand(10**9, 10**9))), "more numbers"),
    (
        "quantiles",
        tensors_with(lambda s: (s.clear(), s.update({"quantile_net.0.weight": torch.ones(1)}))),
        "quantile_net",
    ),
    ("own function", kwargs_with(activation_fn="<class '__main__.ReLU'>"), "__main__.ReLU"),
    ("extractor", kwargs_with(features_extractor_class="<class 'mine.Resnet'>"), "mine.Resnet"),
    ("policy class", data_with(policy_class={"__module__": "mine.policies"}), "mine.policies"),
    (
        "recurrent",
        data_with(policy_class={"__module__": "sb3_contrib.common.recurrent.policies"}),
        "'lstm_actor.weight_ih_l0' is missing",
    ),
    ("twice", tensors_with(lambda s: s.update({"_orig_mod.action_net.bias": torch.ones(2)})), "has a parameter twice"),
    *(
        (
            f"jax {module}",
            lambda members, module=module: (
                members.pop("policy.pth"),
                data_with(policy_class={":type:": "<class 'abc.ABCMeta'>", "__module__": module})(members),
            ),
            r"is an agent of SBX (Stable-Baselines Jax)",
        )
        for module in ("sbx.sac.policies", "flax.linen.module")
    ),
    ("no space", data_with(action_space=None), "action_space is missing"),
    ("not base64", data_with(action_space={":serialized:": "§"}), "base64"),
    ("own space", data_with(action_space=blob(pickle.dumps(Path("x")))), "not a space"),
    (
        "more segments",
        data_with(action_space=space(spaces.MultiDiscrete([2, 3]))),
        "scores 2 actions, action_space has 5",
    ),
    ("more bits", data_with(action_space=space(spaces.MultiBinary(3))), "scores 2 actions, action_space has 3"),
    ("bits of two axes", data_with(action_space=space(spaces.MultiBinary([1, 2]))), "only one axis"),
    ("segments from 1", data_with(action_space=space(spaces.MultiDiscrete([2], start=[1]))), "does not count from 0"),
    (
        "text in a Dict",
        data_with(observation_space=space(spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3)))),
        "observation_space['b'] is a Text; only Box, Discrete, MultiDiscrete and MultiBinary",
    ),
    ("text for bounds", data_with(action_space=bounds(low="x")), "action_space is a Box without bounds"),
    ("complex bounds", data_with(action_space=bounds(low=np.full(2, 1j))), "bounds of type complex128, not real"),
    ("low above high", data_with(action_space=bounds(low=np.full(2, 3.0))), "bounds that no number satisfies"),
    ("an empty Dict", data_with(observation_space=space(spaces.Dict())), "a Dict without spaces by name"),
    ("other values", data_with(observation_space=space(spaces.Discrete(4))), "(3,)"),
    ("counted from 1", data_with(observation_space=space(spaces.Discrete(3, start=1))), "counts from 1"),
    ("an action of a Dict", data_with(action_space=space(spaces.Dict(a=spaces.Discrete(2)))), "action_space is"),
    ("no numbers in a Dict", data_with(observation_space=space(spaces.Dict(a=spaces.Box(0, 1, (0,))))), "one number"),
    ("no actions", data_with(action_space=space(spaces.Box(0, 1, (0,)))), "an action needs at least one number"),
    ("other observation", data_with(observation_space=space(spaces.Box(0, 1, (5,)))), "shape (3,)"),
]


@pytest.mark.parametrize(("change", "word"), [pytest.param(c, w, id=name) for name, c, w in CHANGES])
def test_what_is_wrong_is_said_in_one_line(run: Path, change: Change, word: str):
    assert word in refusal(run, change)


def test_what_is_missing_or_damaged_is_said_in_one_line(run: Path):
    path = run / "Still-v0.zip"
    data = path.read_bytes()
    for size, said in (
        (0, "is not a Stable-B"),
        (10, "not a whole"),
        (len(data) // 2, "not a whole"),
        (-1, "not a whole"),
    ):
        path.write_bytes(data[:size])
        assert said in refusal(run)
    path.unlink()
    assert "no file" in refusal(run)
    with pytest.raises(QuarlError, match=r"has neither Still-v0\.zip nor best_model\.zip"):
        load.read(run)
    path.write_bytes(data)
    (run / "Still-v0/vecnormalize.pkl").unlink()
    assert "vecnormalize.pkl" in refusal(run)


def test_a_bomb_inside_the_parameters_is_refused_before_torch_unpacks_it(run: Path):
    members = {f"archive/{name}": b"" for name in ("data.pkl", "version")} | {"archive/data/0": bytes(5_000_000)}
    assert "bomb" in refusal(run, lambda m: m.update({"policy.pth": zipped(members, zipfile.ZIP_DEFLATED)}))


@pytest.mark.parametrize("where", ["policy.pth", "observation_space", "lr_schedule", "vecnormalize"])
def test_code_in_a_file_is_never_run(run: Path, where: str):
    canary = run / "canary"
    payload = pickle.dumps(Evil(canary))
    path = run / "Still-v0.zip"
    members = unzipped(path.read_bytes())
    if where == "policy.pth":
        members["policy.pth"] = zipped({"archive/data.pkl": payload, "archive/version": b"3\n"})
    elif where == "vecnormalize":
        (run / "Still-v0/vecnormalize.pkl").write_bytes(payload)
    else:
        data_with(**{where: blob(payload)})(members)
    path.write_bytes(zipped(members))
    if where == "lr_schedule":  # nothing needs it, so nothing reads it
        load.read(path)
    else:
        refusal(run)
    assert not canary.exists()


def test_statistics_must_be_finite_and_of_the_observation_s_shape(run: Path):
    path = run / "Still-v0/vecnormalize.pkl"
    with path.open("rb") as file:
        normalizer = pickle.load(file)
    normalizer.class_attributes, normalizer.returns = {}, None  # which it expects to drop when it is saved again
    mean = normalizer.obs_rms.mean
    for value, word in ((np.full(3, np.inf), "infinity"), (np.zeros(2), "no mean"), ("x", "no mean")):
        normalizer.obs_rms.mean = value
        path.write_bytes(pickle.dumps(normalizer))
        assert word in refusal(run)
    normalizer.obs_rms.mean = mean
    for variance, word in ((np.full(3, -1.0), "negative"), (np.full(3, np.nan), "NaN")):
        normalizer.obs_rms.var = variance
        path.write_bytes(pickle.dumps(normalizer))
        assert word in refusal(run)
    normalizer.obs_rms.var, normalizer.epsilon = np.ones(3), -1.0
    path.write_bytes(pickle.dumps(normalizer))
    assert "has no usable epsilon, from 0 on, and clip, above 0; save it again" in refusal(run)
    normalizer.epsilon = 1e-8
    normalizer.obs_rms.mean, normalizer.obs_rms.var = np.zeros(5), np.ones(5)
    path.write_bytes(pickle.dumps(normalizer))
    assert "shape (5,), but the policy observes (3,)" in refusal(run)
    normalizer.norm_obs = False
    path.write_bytes(pickle.dumps(normalizer))
    assert not any(isinstance(op, Normalize) for op in load.read(run).ops)


MEMBERS = ("data", "policy.pth", "archive/data.pkl", "vecnormalize.pkl", "config.yml")


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(MEMBERS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutated_files_with_right_checksums_give_a_policy_or_one_line(
    whole: Path, tmp_path: Path, member: str, changes: list[tuple[float, int]]
):
    run = tmp_path / whole.name
    shutil.copytree(whole, run, dirs_exist_ok=True)

    def mutate(data: bytes) -> bytes:
        mutated = bytearray(data)
        for place, byte in changes:
            mutated[int(place * len(mutated))] = byte
        return bytes(mutated)

    if member in ("vecnormalize.pkl", "config.yml"):
        path = run / "Still-v0" / member
        path.write_bytes(mutate(path.read_bytes()))
    else:
        members = unzipped((run / "Still-v0.zip").read_bytes())
        if member in members:
            members[member] = mutate(members[member])
        else:
            inner = unzipped(members["policy.pth"])
            name = next(name for name in inner if name.endswith("/data.pkl"))
            inner[name] = mutate(inner[name])
            members["policy.pth"] = zipped(inner)
        (run / "Still-v0.zip").write_bytes(zipped(members))
    message = ""
    try:
        load.read(run)
    except QuarlError as error:
        message = str(error)
    assert "\n" not in message
