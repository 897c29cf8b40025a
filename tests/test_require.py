"""What tests need is skipped without, by the name of its package, and fails if it is required."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import require

TESTS = Path(__file__).parent
HOW = re.compile(r"importorskip|shutil\.which|find_spec\(\"\w+\"\) is None|tuned\.installed\(\) is None")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with gcc alone, without optional packages and agents."""
    (tmp_path / "gcc").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("QUARL_REQUIRE", raising=False)
    monkeypatch.setattr(require.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(require, "FOLDERS", dict.fromkeys(require.FOLDERS, tmp_path / "none"))


MISSING = [
    *((name, require.program, f"apt install {said}") for name, said in require.PROGRAMS.items() if name != "gcc"),
    *((name, require.module, f"pip install '{said}'") for name, said in require.MODULES.items()),
    *((name, require.folder, f"no folder shared/{name} beside") for name in require.FOLDERS),
    ("aarch64-linux-gnu-gcc", lambda _: require.runtime("c-aarch64"), "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    ("arm-none-eabi-gcc", lambda _: require.runtime("c-m4"), "gcc-arm-none-eabi"),
    ("arm-none-eabi-gcc", lambda _: require.runtime("c-m0"), "gcc-arm-none-eabi"),
    ("tract", lambda _: require.runtime("tract"), "pip install 'tract'"),
]


@pytest.mark.parametrize(("name", "need", "fix"), MISSING)
def test_missing_thing_skips_with_its_package_and_fails_if_required(name, need, fix, bare, monkeypatch):
    with pytest.raises(pytest.skip.Exception, match=re.escape(f"{name} is missing: ") + ".*" + re.escape(fix)):
        need(name)
    monkeypatch.setenv("QUARL_REQUIRE", f"gcc, {name}")
    with pytest.raises(
        pytest.fail.Exception, match=rf"QUARL_REQUIRE names {re.escape(name)}, which is missing: .*{re.escape(fix)}"
    ):
        need(name)


def test_present_program_passes_and_an_unknown_name_is_refused(bare, monkeypatch):
    monkeypatch.setenv("QUARL_REQUIRE", "gcc")
    assert shutil.which("gcc")
    require.runtime("c")
    monkeypatch.setenv("QUARL_REQUIRE", "gcc,gxx")
    with pytest.raises(pytest.UsageError, match="unknown names: gxx"):
        require.required()


def test_broken_package_is_an_error_and_not_a_skip(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        require.module("wandb")


def test_no_other_test_file_looks_for_programs_or_packages_itself():
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    assert [path.name for path in files if HOW.search(path.read_text())] == []
