"""What this computer is."""

from __future__ import annotations

import pytest

from quarl import machine

GIB = 2**30


def files(root, texts):
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = {"proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable:   {32 * 2**20} kB\n"}


@pytest.mark.parametrize(
    ("texts", "gib"),
    [
        ({}, 32),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "1"}, 32),
        (
            {
                "proc/self/cgroup": "0::/system.slice/run.service\n",
                "sys/fs/cgroup/system.slice/memory.max": f"{10 * GIB}\n",
                "sys/fs/cgroup/system.slice/memory.current": f"{7 * GIB}\n",
                "sys/fs/cgroup/system.slice/memory.stat": f"anon 5\nfile {2 * GIB}\nfile_mapped 1\n",
                "sys/fs/cgroup/system.slice/run.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/run.service/memory.current": f"{7 * GIB}\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/of/the/host\n0::/\n",  # version 1, in a container
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_cache {1 * GIB}\n",
            },
            3,
        ),
    ],
)
def test_free_memory_is_what_the_system_and_its_control_groups_leave(texts, gib, tmp_path):
    files(tmp_path, MEMINFO | texts)
    assert machine.free_bytes(tmp_path) == gib * GIB


def test_where_nothing_is_said_of_memory_nothing_is_known(tmp_path):
    assert machine.free_bytes(tmp_path) is None
