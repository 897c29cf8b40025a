"""Our reader and writer of safetensors agree with the library: the same bytes, the same files refused."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from quarl.errors import QuarlError
from quarl.policy.container import METADATA, parse, pieces

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.float64([[1.5]]),
    "codes": np.arange(7, dtype=np.uint8),
    "half": np.float16([1, 2]),
    "brain": np.array([3, 4, 5], ml_dtypes.bfloat16),
    "zero": np.zeros((), np.int32),
    "ä/é": np.float32([1]),
}


def written(tensors: dict[str, np.ndarray] = TENSORS) -> bytes:
    return b"".join(pieces(tensors, {"manifest": 'say "ü"\n'}))


def test_the_library_reads_what_is_written():
    data = written()
    for name, entry in safetensors.deserialize(data):
        assert bytes(entry["data"]) == TENSORS[name].tobytes()
        assert tuple(entry["shape"]) == TENSORS[name].shape
    library = {name: array for name, array in TENSORS.items() if name != "brain"}
    assert written(library) == safetensors.numpy.save(library, {"manifest": 'say "ü"\n'})


def test_what_is_read_are_views_of_the_bytes():
    data = np.frombuffer(written(), np.uint8).copy()
    found, metadata = parse(data.data)
    assert metadata == {"manifest": 'say "ü"\n'}
    for name, (_, shape, numbers) in found.items():
        assert shape == TENSORS[name].shape
        assert bytes(numbers) == TENSORS[name].tobytes()
        assert np.shares_memory(np.frombuffer(numbers, np.uint8), data)


def with_header(change) -> bytes:
    data = written({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.uint8)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


HOSTILE = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "length beyond the end": (2**60).to_bytes(8, "little") + b"{}",
    "no json": (4).to_bytes(8, "little") + b"\xff\xfe{}",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "deep": (60_000).to_bytes(8, "little") + b"[" * 60_000,
    "cut": written()[:-1],
    "longer": written() + b"x",
    "hole": with_header(lambda h: h["b"].update(data_offsets=[25, 28], shape=[3])),
    "overlap": with_header(lambda h: h["b"].update(data_offsets=[0, 4])),
    "order": with_header(lambda h: h["b"].update(data_offsets=[28, 24])),
    "negative": with_header(lambda h: h["a"].update(shape=[-2, -3])),
    "fraction": with_header(lambda h: h["a"].update(shape=[2.0, 3])),
    "truth": with_header(lambda h: h["a"].update(shape=[True, 6])),
    "huge": with_header(lambda h: h["a"].update(shape=[2**62, 2**62])),
    "many huge": with_header(lambda h: h["a"].update(shape=[10**4_000] * 400)),
    "more numbers": with_header(lambda h: h["a"].update(shape=[2, 4])),
    "wider type": with_header(lambda h: h["a"].update(dtype="F64")),
    "no type": with_header(lambda h: h["a"].pop("dtype")),
    "three offsets": with_header(lambda h: h["a"].update(data_offsets=[0, 24, 24])),
    "text for a tensor": with_header(lambda h: h.update(a="x")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_the_library_refuses_is_refused_in_one_line(case: str):
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(HOSTILE[case])
    with pytest.raises(QuarlError, match="damaged"):
        parse(HOSTILE[case])


def test_types_that_no_policy_holds_are_refused_by_name():
    with pytest.raises(QuarlError, match="tensor 'b' has dtype BOOL"):
        parse(with_header(lambda h: h["b"].update(dtype="BOOL")))
    with pytest.raises(QuarlError, match="damaged"):
        parse(with_header(lambda h: h.pop(METADATA)))


def test_random_damage_never_reads_what_the_library_would_not():
    data = written()
    rng = np.random.default_rng(0)
    end = 8 + int.from_bytes(data[:8], "little")
    for position in rng.integers(end * 8, size=2000):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << (position % 8)
        try:
            ours, _ = parse(damaged)
        except QuarlError:
            continue
        theirs = dict(safetensors.deserialize(bytes(damaged)))
        assert ours.keys() == theirs.keys()
        for name, (_, shape, numbers) in ours.items():
            assert list(shape) == theirs[name]["shape"]
            assert bytes(numbers) == bytes(theirs[name]["data"])
