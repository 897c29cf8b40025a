"""YAML of defaults: merged as it says, and never more than it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarl.errors import QuarlError
from quarl.inert.yaml import read_yaml


def read(tmp_path: Path, text: str, *, merging: bool = True) -> dict:
    path = tmp_path / "defaults.yml"
    path.write_text(text)
    return read_yaml(path, merging=merging)


def test_own_values_win_over_merged_ones(tmp_path):
    text = "a: &a\n  x: 1\n  y: 2\nb: &b\n  <<: *a\n  y: 3\nc:\n  <<: *b\n  z: 4\n"
    assert read(tmp_path, text) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 3, "z": 4}}


def test_an_agent_s_own_file_merges_nothing(tmp_path):
    with pytest.raises(QuarlError, match="merge keys"):
        read(tmp_path, "a: &a {x: 1}\nb: {<<: *a}\n", merging=False)


def test_the_name_of_a_class_is_text(tmp_path):
    text = "policy_kwargs:\n  activation_fn: !!python/name:torch.nn.modules.activation.ReLU ''\n"
    assert read(tmp_path, text) == {"policy_kwargs": {"activation_fn": "torch.nn.modules.activation.ReLU"}}
    assert read(tmp_path, "a: !!python/name:not_there.at_all\n") == {"a": "not_there.at_all"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a {x: 1}\nb: {<<: [*a, *a]}", "only one mapping"),
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}", "only one mapping"),
        ("b: {<<: 3}", "only one mapping"),
        ("a: &a {<<: *a}", "nested"),
        ("a: !!python/object/apply:os.system [true]", "os.system"),
        ("a: !!python/name:os.system [x]", "os.system"),
        ("a: !!python/name:os.system {x: y}", "os.system"),
        ("a: !!python/name:os.system x", "os.system"),
        ("a: !!python/tuple x", "expected a sequence node, but found scalar; only literals are read"),
        (f"a: {2**64}", "more than 64 bits"),
        (
            "a: &a {" + ", ".join(f"k{n}: 0" for n in range(900)) + "}\n"
            "b: {<<: *a, " + ", ".join(f"l{n}: 0" for n in range(200)) + "}",
            "more than 1000 values",
        ),
        (
            "a: &a [" + "1," * 500 + "]\n" + "".join(f"b{n}: *a\n" for n in range(50)),
            "more values than any configuration",
        ),
    ],
)
def test_what_is_no_file_of_defaults_is_refused_in_one_line(tmp_path, text, said):
    with pytest.raises(QuarlError, match=said) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
