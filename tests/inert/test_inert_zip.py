"""Archives are read whole, within bounds, or refused in one line."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import pytest

from quarl.errors import QuarlError
from quarl.inert.zip import Opened, read_bytes, unpack
from sb3_archives import zipped


def refusal(data: bytes, **options: int) -> str:
    with pytest.raises(QuarlError) as caught:
        unpack(data, "agent.zip", **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("agent.zip")
    return text


def test_members_come_back_as_they_went_in():
    members = {"data": b"{}", "folder/policy.pth": bytes(range(256))}
    assert unpack(zipped(members, zipfile.ZIP_DEFLATED), "agent.zip") == members


def test_only_the_wanted_members_are_unpacked(tmp_path: Path):
    path = tmp_path / "agent.zip"
    path.write_bytes(zipped({"data": b"1", "policy.optimizer.pth": b"2"}))
    assert Opened(path).unpacked("data", "absent") == {"data": b"1"}


def encrypted() -> bytes:
    data = bytearray(zipped({"data": b"1"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag in the central directory
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (zipped({"zeros": bytes(3_000_000)}, zipfile.ZIP_DEFLATED), {}, "bomb"),
        (zipped({"a": bytes(600), "b": bytes(600)}), {"limit_bytes": 1000}, "more than the limit of 1,000"),
        (zipped({str(n): b"" for n in range(5000)}), {}, "members"),
        (encrypted(), {}, "encrypted"),
        (zipped({"data": b"1"}, zipfile.ZIP_LZMA), {}, "deflated"),
        *(
            (zipped({name: b"1"}), {}, "outside the archive")
            for name in ("../data", "/data", "a/../../data", "a\\..\\data", "C:/data")
        ),
    ],
    ids=["bomb", "large together", "many members", "encrypted", "compression", *(f"outside-{n}" for n in range(5))],
)
def test_an_archive_that_no_saver_writes_is_refused(data: bytes, options: dict[str, int], said: str):
    assert said in refusal(data, **options)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data", b"1")
        file.writestr("data", b"2")
    assert "two members named 'data'" in refusal(buffer.getvalue())


def test_an_archive_cut_off_behind_one_that_it_stores_is_not_taken_for_that_one():
    inner = zipped({"data": b"{}"})
    outer = zipped({"policy.pth": inner, "data": bytes(5000)})
    assert "its first member does not come first" in refusal(outer[: outer.index(inner) + len(inner)])


def test_every_truncation_is_refused():
    data = zipped({"data": bytes(range(50))})
    for size in range(len(data)):
        refusal(data[:size])


def test_every_flipped_bit_of_the_contents_is_noticed():
    content = bytes(range(100, 120))
    data = zipped({"data": content})
    start = data.index(content)
    for bit in range(8 * len(content)):
        flipped = bytearray(data)
        flipped[start + bit // 8] ^= 1 << bit % 8
        assert "CRC" in refusal(bytes(flipped))


def test_missing_files_folders_and_oversized_files_are_named(tmp_path: Path):
    large = tmp_path / "large"
    large.write_bytes(bytes(11))
    for path, word in ((tmp_path / "absent", "no file"), (tmp_path, "folder"), (large, "11 bytes")):
        with pytest.raises(QuarlError, match=word) as caught:
            read_bytes(path, limit_bytes=10)
        assert str(path) in str(caught.value)
    with pytest.raises(QuarlError, match="cannot read"):
        read_bytes(Path("x" * 5000))


def test_what_grows_to_much_must_have_been_much(tmp_path: Path):
    zeros = {f"a{n}": b"".join(bytes(2**16) + random.Random(n).randbytes(400) for _ in range(300)) for n in range(5)}
    assert sum(map(len, zeros.values())) > 2**26
    assert "refused as a decompression bomb" in refusal(zipped(zeros, zipfile.ZIP_DEFLATED))
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2**27)
    with pytest.raises(QuarlError, match="is a sparse file: the disk holds almost none of its 134,217,728 bytes"):
        read_bytes(path)
    path.write_bytes(random.Random(0).randbytes(2**16) * 2**11)
    assert len(read_bytes(path)) == 2**27
