"""Pages are shared out among the workers whole: what a page shows runs in order, in one folder."""

from __future__ import annotations

import re

import pytest
from xdist.scheduler import LoadScopeScheduling


class PageScheduling(LoadScopeScheduling):
    """All tests of a page go to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        page = re.search(r"\[([\w./-]+\.md)", nodeid)
        return page[1] if page else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """In place of --dist loadgroup, which pytest-xdist 3.8 leaves without effect under pytest 9.2."""
    return PageScheduling(config, log)
