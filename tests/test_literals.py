"""Text as values: what is data comes out as it is, and nothing is ever called or looked up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl.literals import Name, read, spell, written

KEYS = st.text(max_size=4)
PLAIN = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=4)
PLAIN |= st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_spelt_is_read_back(value):
    assert read(spell(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dict(net_arch=[256, 256])", {"net_arch": [256, 256]}),
        ("dict(log_std_init=-2,  ortho_init=False,)", {"log_std_init": -2, "ortho_init": False}),
        ("dict(pi=[64], vf=dict(a=1))", {"pi": [64], "vf": {"a": 1}}),
        ("{'norm_obs': False, 'norm_reward': True}", {"norm_obs": False, "norm_reward": True}),
        (" (1, 'episode') ", (1, "episode")),
        ("1e-5", 1e-5),
        ("None", None),
    ],
)
def test_the_zoo_s_spellings(text, value):
    assert read(text) == value


def test_names_are_names_where_they_are_allowed():
    found = read("dict(activation_fn=nn.ReLU, optimizer_class=th.optim.Adam)", names=True)
    assert found == {"activation_fn": Name("nn.ReLU"), "optimizer_class": Name("th.optim.Adam")}
    assert spell(found) == "dict(activation_fn=nn.ReLU, optimizer_class=th.optim.Adam)"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "dict(a=open('x'))",
        "dict(**x)",
        "dict([('a', 1)])",
        "{**x}",
        "{1: 2}",
        "[x for x in (1,)]",
        "lambda: 0",
        "a if b else c",
        "f'{x}'",
        "x.__class__()",
        "().__class__",
        "2 ** 99999999",
        "-True if 1 else 0",
        "b'bytes'",
        "1j",
        "(" * 900,
        "",
        "a b",
    ],
)
def test_anything_else_is_refused_and_not_run(text):
    for names in (False, True):
        with pytest.raises(ValueError, match=r"literal|key|name"):
            read(text, names=names)


@pytest.mark.parametrize(("reads", "text"), [(read, "nn.ReLU"), (read, "dict(a=nn.ReLU)"), (written, "open('x')")])
def test_names_are_refused_where_only_values_are_read(reads, text):
    with pytest.raises(ValueError, match="not a literal"):
        reads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lin_2.3e-4", "lin_2.3e-4"),
        ("MlpPolicy", "MlpPolicy"),
        ("ornstein-uhlenbeck", "ornstein-uhlenbeck"),
        ("auto_0.1", "auto_0.1"),
        ("True", True),
        ("[64, 64]", [64, 64]),
        ("dict(net_arch=[8])", {"net_arch": [8]}),
        ("dict(activation_fn=nn.ReLU)", "dict(activation_fn=nn.ReLU)"),
    ],
)
def test_words_and_class_names_are_kept_as_a_configuration_has_them(text, value):
    assert written(text) == value
