"""Faults that runs on a cluster survive: a tenth of stress.chaos.cluster, on real raylets."""

from __future__ import annotations

import random

import pytest

import require

require.module("ray")

from stress.chaos import cluster  # noqa: E402  # it imports Ray

pytestmark = pytest.mark.slow


def test_a_killed_agent_is_replaced_and_no_step_is_there_twice(tmp_path):
    found = cluster.agents_killed(tmp_path, random.Random(0), kills=1, every_s=0.0, each=1)
    assert [law for law in found["failed"] if "within" not in law] == []  # how soon is the campaign's matter
