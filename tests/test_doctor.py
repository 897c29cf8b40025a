"""The doctor's checks on this machine and on machines that are not well, and what is known of a machine."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

import contracts
from quarl import __version__, machine
from quarl.commands import doctor
from quarl.engines import ENGINES
from quarl.report import schema

CPUINFO = """\
processor\t: 0
model name\t: Some CPU
cpu family\t: 6
model\t\t: 143
flags\t\t: fpu avx2 fma avx512f avx512_vnni amx_int8

processor\t: 1
flags\t\t: fpu
"""


def test_this_machine_passes_and_the_rows_keep_the_contract():
    rows = doctor.examine()
    contracts.check(schema.document(doctor.Check, rows))
    assert [row for row in rows if not row.ok] == []
    assert {f"engine {name}" for name in ENGINES} <= {row.check for row in rows}


def test_the_header_of_results_is_plain_json():
    header = machine.machine()
    assert json.loads(json.dumps(header)) == header
    assert set(header) == {
        "cpu", "instruction_sets", "cores", "memory_gib", "os", "python", "versions", "commit", "date",
    }  # fmt: skip
    assert header["versions"]["numpy"] == machine.version("numpy")
    assert header["cores"] >= 1


def test_instruction_sets_are_those_of_the_first_core(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / "cpuinfo")
    monkeypatch.setattr(machine.sys, "platform", "linux")
    assert machine.instruction_sets() == ["avx2", "fma", "avx512", "avx512-vnni", "amx-int8"]
    assert machine.cpu_name() == "Some CPU (family 6, model 143)"


def test_without_8_bit_dot_products_the_doctor_warns_of_saturation(monkeypatch):
    monkeypatch.setattr(doctor, "instruction_sets", lambda: ["avx2"])
    row = doctor._hardware()[-1]
    assert (row.found, row.ok) == ("none", True)
    assert "saturate" in row.advice
    monkeypatch.setattr(doctor, "instruction_sets", lambda: ["avx2", "avx-vnni"])
    assert doctor._hardware()[-1] == doctor.Check("8-bit dot products", "avx-vnni", True, "")


def test_versions_are_those_of_python_quarl_and_installed_packages(monkeypatch):
    monkeypatch.setattr(doctor, "version", {"torch": "2.13.0", "numpy": "2.4.6"}.get)
    found = f"python {platform.python_version()}, quarl {__version__}, numpy 2.4.6, torch 2.13.0"
    assert doctor._packages() == doctor.Check("versions", found, True, "")


def test_an_engine_that_cannot_be_imported_is_a_fault_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "quarl.engines.onnx", None)
    (row,) = [row for row in doctor._engines() if not row.ok]
    assert (row.check, row.found) == ("engine onnx", "does not run")
    assert row.advice.startswith("ModuleNotFoundError")
    assert "\n" not in row.advice


def test_an_engine_of_an_extra_that_is_not_installed_is_no_fault(monkeypatch):
    monkeypatch.delitem(sys.modules, "quarl.engines.onnx", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    row = doctor._engines()[1]
    assert row == doctor.Check("engine onnx", "not installed", True, "pip install 'quarl[onnx]'")


def test_another_checkout_around_the_installation_is_not_ours(monkeypatch, tmp_path):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "lib" / "quarl" / "machine.py"))
    monkeypatch.setattr(machine, "_output", lambda *command: "0123abc")
    assert machine.commit.__wrapped__() is None


def test_changed_files_are_marked_on_the_commit(monkeypatch, tmp_path):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "src" / "quarl" / "machine.py"))
    answers = {"HEAD": "0123abc", "--untracked-files=no": " M README.md"}
    monkeypatch.setattr(machine, "_output", lambda *command: answers.get(command[-1], ""))
    assert machine.commit.__wrapped__() == "0123abc+"


@pytest.mark.slow
def test_asking_the_doctor_imports_nothing_heavy():
    code = (
        "import sys, quarl.commands.doctor; print([m for m in ('numpy', 'torch', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
