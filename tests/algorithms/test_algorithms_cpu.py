"""What torch computes with on a CPU."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PAGES = """
import ctypes, resource, sys, torch
from quarl.algorithms.cpu import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_memory

for which in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
    ctypes.CDLL(None).mallopt(which, 2**17)  # what a process begins with; left alone, glibc moves it, by chance
if sys.argv[1] == "keep":
    keep_memory()

def update():  # frees as much as one of 2048 x 2048 weights
    casts = [torch.empty(2048, 2048) for _ in range(3)]
    for cast in casts:
        cast.fill_(1)

for _ in range(10):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator has the setting")
def test_memory_of_an_update_is_kept_for_the_next_one() -> None:
    pages = {how: int(subprocess.check_output([sys.executable, "-c", PAGES, how])) for how in ("keep", "leave")}

    assert pages["leave"] > 5 * 3  # more than one for each block, however large a page is
    assert pages["keep"] < pages["leave"] / 10
