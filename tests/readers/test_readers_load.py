"""A file's kind is told by its contents, also where the length of a header spells the start of another kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from networks import dense
from quarl.policy import artifact
from quarl.policy.graph import Provenance
from quarl.readers import load


@pytest.mark.parametrize("start", [b"\x80", b"PK"], ids=["pickle", "zip"])
def test_an_artefact_is_read_whatever_its_first_bytes_are(start, tmp_path):
    policy = dense([2, 2])

    def named(length):
        return replace(policy, provenance=Provenance(env_id="x" * length))

    size = len(artifact.to_bytes(named(0)))
    wanted = int.from_bytes(start, "little")
    lengths = range(0, 300) if len(start) == 1 else range(wanted - size - 300, wanted)
    length = next(n for n in lengths if n >= 0 and artifact.to_bytes(named(n)).startswith(start))
    path = tmp_path / "policy.quarl"
    artifact.write(named(length), path)
    assert load.read(path).provenance.env_id == "x" * length
