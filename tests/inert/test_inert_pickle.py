"""Pickles read as data: plain values come out equal to Python's own reading, everything else comes out inert."""

from __future__ import annotations

import collections
import datetime
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl.errors import QuarlError
from quarl.inert.npz import read_npy, read_npz
from quarl.inert.pickle import Inert, dtype_of, read_pickle
from quarl.inert.reading_budget import reading

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**300), 2**300),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
KEYS = st.one_of(st.text(max_size=5), st.integers(-(2**63), 2**63), st.booleans(), st.binary(max_size=5))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner, inner),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
    ),
    max_leaves=20,
)


def refusal(data: bytes) -> str:
    with pytest.raises(QuarlError) as caught:
        read_pickle(data, "agent.pkl")
    text = str(caught.value)
    assert text.startswith("agent.pkl: ")
    assert text.isprintable()
    return text


@pytest.mark.slow
@given(VALUES, st.sampled_from(PROTOCOLS))
@settings(max_examples=300, deadline=None)
def test_plain_values_come_out_as_python_reads_them(value: Any, protocol: int):
    assert read_pickle(pickle.dumps(value, protocol), "f") == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">f4").reshape(3, 2)),
        np.zeros((0, 4), np.int16),
        np.array([True, False]),
        np.array(3.5, np.float16),
        np.arange(8, dtype=np.uint64)[::2],
    ],
)
def test_numeric_arrays_keep_values_shape_and_dtype(array: np.ndarray, protocol: int):
    found = read_pickle(pickle.dumps(array, protocol), "f")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_array_that_is_named_twice_is_one_array(protocol: int):
    array = np.ones(3)
    first, second = read_pickle(pickle.dumps([array, array], protocol), "f")
    assert first is second


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_scalars_and_ordered_dicts_are_plain(protocol: int):
    value = collections.OrderedDict(a=np.float32(1.5), b=np.int64(-2), c=np.bool_(True))
    found = read_pickle(pickle.dumps(value, protocol), "f")
    assert type(found) is dict
    assert found == {"a": 1.5, "b": -2, "c": True}
    assert found["a"].dtype == np.float32


def test_the_old_and_the_new_name_of_numpys_core_mean_the_same():
    new = pickle.dumps(np.arange(3.0), 2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != new
    np.testing.assert_array_equal(read_pickle(old, "f"), read_pickle(new, "f"))


def test_python_2_wrote_arrays_as_text():
    # what Python 2.7 with numpy 1.16 gives for np.array([1., 2.]), protocol 2, bytes as SHORT_BINSTRING
    text = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03(K\x01K\x02\x85"
        b"cnumpy\ndtype\nq\x04U\x02f8K\x00K\x01\x87Rq\x05(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x10"
        b"\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x00@tb."
    )
    np.testing.assert_array_equal(read_pickle(text, "f"), [1.0, 2.0])


class Kept:
    """Anything that is not plain."""

    def __init__(self) -> None:
        self.mean = np.ones(2)
        self.name = "x"


class Armed:
    """Fails the test if it is ever called, restored or looked up."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_never, ("x",), {"a": 1})


def _never(*_: Any) -> None:
    raise AssertionError("a pickle was executed")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_comes_out_inert_with_its_attributes(protocol: int):
    found = read_pickle(pickle.dumps(Kept(), protocol), "f")
    assert isinstance(found, Inert)
    assert (found.module, found.name, found.called) == (Kept.__module__, "Kept", True)
    assert found.attributes["name"] == "x"
    np.testing.assert_array_equal(found.attributes["mean"], [1, 1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_call_is_recorded_and_not_made(protocol: int):
    found = read_pickle(pickle.dumps(Armed(), protocol), "f")
    assert (found.name, found.args, found.state) == ("_never", ("x",), {"a": 1})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_class_comes_out_as_its_name(protocol: int):
    found = read_pickle(pickle.dumps(Path, protocol), "f")
    assert (found.module, found.name, found.called, found.args) == ("pathlib", "Path", False, ())


def test_containers_with_code_behind_them_keep_their_contents_inert():
    deque = read_pickle(pickle.dumps(collections.deque([1, 2], maxlen=5)), "f")
    assert (deque.path, deque.items) == ("collections.deque", [1, 2])
    default = read_pickle(pickle.dumps(collections.defaultdict(list, {"a": [1]})), "f")
    assert default.items == [("a", [1])]
    when = read_pickle(pickle.dumps(datetime.date(2020, 1, 2)), "f")
    assert when.path == "datetime.date"


def test_arrays_of_objects_stay_inert():
    found = read_pickle(pickle.dumps(np.array([{"a": 1}, None], object)), "f")
    assert isinstance(found, Inert)
    structured = read_pickle(pickle.dumps(np.zeros(2, [("a", "f4")])), "f")
    assert isinstance(structured, Inert)


def test_dtypes_are_understood_where_they_are_numbers():
    assert dtype_of(read_pickle(pickle.dumps(np.dtype("f4")), "f")) == np.float32
    assert dtype_of(read_pickle(pickle.dumps(np.dtype(">i8")), "f")) == np.dtype(">i8")
    assert dtype_of(read_pickle(pickle.dumps(np.float32), "f")) == np.float32
    assert dtype_of(read_pickle(pickle.dumps(np.dtype("U4")), "f")) is None
    assert dtype_of(3) is dtype_of(Inert("m", "N")) is None


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "bytes do not follow"),
        (b"\x80\x04", "bytes do not follow"),
        (b"\x80\x09N.", "protocol is 9"),
        (b"0.", "lacks its operand"),
        (b"h\x07.", "lacks its operand"),
        (b"\x80\x02X\x05\x00\x00\x00touchQ.", "outside the file"),
        (b"\x82\x01.", "outside the file"),
        (b"}]K\x01s.", "list is a key"),
        (b"}NN\x86K\x01s.", "tuple is a key"),
        (b"}\x8a\x09" + b"\x01" * 9 + b"K\x01s.", "more than 64 bits"),
        (b"\x8b\x00\x04\x00\x00" + b"\x7f" * 1024 + b".", "4096 bits"),
        (b"K\x01K\x02a.", "not a list"),
        (b"K\x01)R.", "no name"),
        (b"K\x01\x86.", "lacks its operand"),
        (b"](K\x01K\x02u.", "not a dict"),
        (b"](K\x01\x90.", "not a set"),
        (b"cbuiltins\nset\nK\x01\x85R.", "not made of a list"),
        (b"ccollections\nOrderedDict\n]K\x01a\x85R.", "not a pair"),
        (pickle.dumps(np.arange(4.0), 2).replace(b"K\x04\x85", b"K\x05\x85"), "shape does not match its bytes"),
        (pickle.dumps(np.arange(4.0), 2).replace(b"K\x04\x85", b"K\x04"), "impossible shape"),
        (pickle.dumps(np.arange(4.0), 2).replace(b"K\x04\x85", b"J" + b"\xff" * 4 + b"\x85"), "impossible shape"),
        (pickle.dumps(np.arange(4.0), 4).replace(b"C\x20" + np.arange(4.0).tobytes(), b"N"), "contents are not bytes"),
        (b"]N}b.", "plain value"),
        (b"c" + b"a" * 300 + b"\nb\n.", "255 characters"),
        (b"N0" * 150_000 + b".", "200,000 values"),
    ],
)
def test_a_malformed_pickle_is_refused_with_its_cause(data: bytes, cause: str):
    assert cause in refusal(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (pickle.dumps({1, 2}, 2), {1, 2}),  # calls builtins.set
        (pickle.dumps({1, 2}, 4), {1, 2}),
        (b"ccollections\nOrderedDict\n]]X\x01\x00\x00\x00aaK\x01aa\x85R.", {"a": 1}),
        (b"(K\x01im\nN\n.", ("m.N", (1,), [])),  # INST
        (b"(cm\nN\nK\x01o.", ("m.N", (1,), [])),  # OBJ
        (b"cm\nN\n)\x81(K\x01K\x02\x90.", ("m.N", (), [1, 2])),  # ADDITEMS
    ],
)
def test_rare_opcodes_give_plain_containers_and_inert_objects(data: bytes, value: Any):
    found = read_pickle(data, "f")
    assert ((found.path, found.args, found.items) if isinstance(found, Inert) else found) == value


def test_every_truncation_is_refused():
    data = pickle.dumps({"a": np.arange(3.0), "b": [Kept()]}, 4)
    for end in range(len(data)):
        refusal(data[:end])


def test_a_value_may_contain_itself():
    value: list[Any] = [1]
    value.append(value)
    found = read_pickle(pickle.dumps(value), "f")
    assert found[1] is found


def test_shared_parts_cost_no_more_than_the_file():
    nest = b"".join(b"](" + b"h%c" % n * 16 + b"eq%c" % (n + 1) for n in range(60))  # 16**60 leaves, if copied
    start = time.process_time()
    assert len(read_pickle(b"\x80\x02]q\x00" + nest + b".", "f")) == 16
    assert time.process_time() - start < 1


def test_copies_are_bounded_by_the_file():
    text = b"X" + (1000).to_bytes(4, "little") + b"a" * 1000 + b"q\x01"
    encode = b"c_codecs\nencode\nq\x00" + text + b"X\x06\x00\x00\x00latin1q\x02"
    assert read_pickle(b"\x80\x02" + encode + b"h\x00h\x01h\x02\x86R.", "f") == b"a" * 1000
    assert "repeats" in refusal(b"\x80\x02" + encode + b"(" + b"h\x00h\x01h\x02\x86R" * 9 + b"l.")


def test_statistics_of_real_agents_read_as_the_library_has_them(agents: Path):
    found = read_pickle((agents / "sb2/ppo2/HopperBulletEnv-v0/obs_rms.pkl").read_bytes(), "f")
    assert found.path == "stable_baselines.common.running_mean_std.RunningMeanStd"
    assert found.attributes["mean"].shape == found.attributes["var"].shape == (15,)
    assert found.attributes["count"] == 1998856.0001
    for path in sorted(agents.glob("**/*.pkl")):
        read_pickle(path.read_bytes(), path.name)


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.float32(3) * np.ones(()), np.zeros((0, 3), ">i2")])
def test_npy_files_read_as_numpy_reads_them(array: np.ndarray, tmp_path: Path):
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", **{"model/pi/w:0": array, "b": array.T})
    found = read_npy((tmp_path / "a.npy").read_bytes(), "f")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    archive = read_npz((tmp_path / "a.npz").read_bytes(), "f")
    assert archive.keys() == {"model/pi/w:0", "b"}
    np.testing.assert_array_equal(archive["b"], array.T)


def test_npy_headers_are_not_evaluated(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(QuarlError, match="only arrays of numbers"):
        read_npy((tmp_path / "a.npy").read_bytes(), "f")
    np.save(tmp_path / "b.npy", np.ones(2))
    data = (tmp_path / "b.npy").read_bytes()
    for old, new in ((b"False", b"exit("), (b"(2,)", b"(3,)"), (b"(2,)", b"2*1,")):
        with pytest.raises(QuarlError):
            read_npy(data.replace(old, new), "f")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 999999999999999, 999999999999999), }"
    for data, said in (
        (b"", "is not an .npy array"),
        (b"\x93NUMPY\x01\x00\xff\xff", "claims a header of 65,535 bytes"),
        (b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, "claims an impossible shape"),
    ):
        with pytest.raises(QuarlError, match=f"^f {said}; the file is damaged$"):
            read_npy(data, "f")


def test_an_unexpected_error_while_reading_names_the_file():
    with pytest.raises(QuarlError, match=r"^a\.zip is damaged \(.*no 'w'.*\); fetch it again$"), reading("a.zip"):
        raise LookupError("no 'w'")


def test_inert_objects_print_on_one_short_line():
    nested: Any = Inert("m", "n")
    for _ in range(10_000):
        nested = Inert("m" * 255, "n", (nested,), called=True)
    assert len(repr(nested)) < 100
    assert nested.attributes == {}
