"""Names, units and the control period in a contract: read from a file, from the environment, compared by verify."""

from __future__ import annotations

import json

import pytest

from networks import cartpole, dense
from quarl.errors import QuarlError
from quarl.export import contract, numbers, quantised
from quarl.export.readme import readme
from quarl.policy import artifact
from refusals import refused

NAMES = """
control_hz: 400
observation: [{name: position, unit: m}, {name: velocity, unit: m/s}, {name: angle | tilt, unit: rad}, {name: rate}]
action: [{name: left}, {name: right, unit: N}]
"""


def described(policy, names=None):
    about = {"arithmetic": "f32-rne", "source": {"file": "", "sha256": ""}, "names": names}
    return contract.contract(quantised(policy, "tflite", "fp32"), "tflite", **about)


def test_names_and_units_of_a_file_are_in_the_contract_and_its_page(tmp_path):
    (tmp_path / "names.yaml").write_text(NAMES)
    names = numbers.read_names(tmp_path / "names.yaml", cartpole())
    full = described(cartpole(), names)
    assert full["control_period"] == 0.0025
    assert full["observation"]["numbers"][1] == {"place": 1, "name": "velocity", "unit": "m/s"}
    assert full["observation"]["numbers"][3] == {"place": 3, "name": "rate", "unit": ""}
    assert full["action"]["numbers"] == [
        {"place": 0, "name": "left", "unit": ""},
        {"place": 1, "name": "right", "unit": "N"},
    ]
    page = readme(full, "policy.tflite")
    assert "An action is due every 0.0025 s." in page
    assert "| observation 2 | angle \\| tilt | rad |\n" in page
    assert "right" not in contract.inner(full)  # files are the same with and without names
    (tmp_path / "names.json").write_text(json.dumps(names))
    assert numbers.read_names(tmp_path / "names.json", cartpole()) == names
    without = described(cartpole())
    assert (without["control_period"], without["action"]["numbers"]) == (None, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("control_period", "soon"),
        ("action.numbers", [{"place": 0, "name": "left", "unit": ""}]),
        ("observation.numbers", [{"place": 0, "name": "position", "unit": "m"}] * 5),
        ("action.numbers", "left"),
    ],
)
def test_a_contract_with_other_names_than_numbers_differs(key, value):
    policy = quantised(cartpole(), "tflite", "fp32")
    full = json.loads(json.dumps(described(cartpole(), {"action": [{"name": "a"}] * 2, "control_hz": 50})))
    assert list(contract.differences(policy, full)) == []
    at = full
    for part in key.split(".")[:-1]:
        at = at[part]
    at[key.split(".")[-1]] = value
    assert list(contract.differences(policy, full)) == [key]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reward: []", "has the key 'reward'; it may have observation, action and control_hz"),
        ("action: [{name: a}]", "must have a list of 2 entries under action"),
        ("action: 7", "must have a list of 2 entries under action"),
        ("action: [{name: a}, b]", "action[1] is not a name with a unit, as in {name: height, unit: m}"),
        ("action: [{name: a}, {unit: m}]", "action[1] is not a name with a unit"),
        ("action: [{name: a}, {name: b, unit: 3}]", "action[1] is not a name with a unit"),
        ("action: [{name: a}, {name: b, size: m}]", "action[1] is not a name with a unit"),
        ('action: [{name: a}, {name: "b\\nc"}]', "action[1] is not a name with a unit"),
        (f"action: [{{name: a}}, {{name: {'b' * 81}}}]", "of up to 80 printable letters each"),
        ("control_hz: 0", "control_hz must be a number from 1e-6 to 1e6, got 0"),
        ("control_hz: .nan", "control_hz must be a number from 1e-6 to 1e6, got nan"),
        ("control_hz: true", "control_hz must be a number from 1e-6 to 1e6, got True"),
        ("action: [", "is not YAML"),
        ("!!python/object/apply:os.system [ls]", "only literals are read"),
    ],
)
def test_names_that_do_not_fit_are_one_line(text, said, tmp_path):
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(QuarlError) as caught:
        numbers.read_names(tmp_path / "names.yaml", cartpole())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_export_refuses_names_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    artifact.write(dense([4, 8, 2]), tmp_path / "policy.quarl")
    (tmp_path / "names.yaml").write_text("action: []")
    line = refused(capsys, "export", "policy.quarl", "--names", "names.yaml", "--output", "out")
    assert line == "quarl: names.yaml must have a list of 2 entries under action, one for each of the policy's numbers"
    assert "no file" in refused(capsys, "export", "policy.quarl", "--names", "other.yaml", "--output", "out")
    assert not (tmp_path / "out").exists()
