"""Two tiers: `make test` runs what neither starts a process nor trains for long, `make test-all` everything.

A test that does either carries `pytest.mark.slow`. The guard below fails one that does it unmarked, so that the default
tier stays quick on any machine: it counts processes and optimizer steps, never seconds.
"""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import pytest

SMOKE = (
    "test_cli.py::test_the_package_runs_as_the_command",
    "test_cli.py::test_two_ptq_runs_into_one_folder_end_well_and_leave_the_whole_result_of_the_last",
    "runs/test_runs_resume.py::test_a_resumed_run_reaches_the_end_of_the_first_one_s_options",
    "qat/test_qat_convert.py::test_integers_act_as_the_model_does[ppo]",
    "test_api.py::test_the_guides_python_runs_and_prints_what_its_comments_say",
    "test_distill.py::test_fresh_episodes_are_played_until_a_verdict",
    "actorq/test_actorq_faults.py::test_a_run_replaces_a_killed_actor_and_resumes",
    "lab/test_study_run.py::test_a_cell_whose_process_dies_costs_only_itself",
    "export/test_c.py::test_compiled_c_gives_the_bits_of_the_reference[relu-int8]",
    "cluster/test_cluster_connection.py::test_only_loopback_listens",
)
"""Slow tests that the default tier runs all the same: one for each thing that only a process or a training shows."""
MAX_SMOKE = 14
SAMPLED = (
    "distillation/test_distillation_student.py::test_a_student_begins_as_the_calibrated_policy_and_computes_what_its_kernels_do",
    "envs/test_envs_dm_control.py::test_observations_rewards_and_ends_are_those_of_shimmy_bit_for_bit",
    "engines/test_engines_litert.py::test_every_operator_is_the_references",
    "engines/test_engines_litert.py::test_static_networks_are_the_references_bit_for_bit",
    "engines/test_engines_litert.py::test_xnnpack_takes_every_operator",
    "engines/test_engines_litert_micro.py::test_files_act_there_or_say_that_they_cannot",
    "engines/test_engines_onnx.py::test_a_file_is_of_the_lowest_version_that_its_operators_need",
    "export/test_qdq.py::test_every_operator_acts_as_in_the_reference",
    "policy/test_policy_artifact.py::test_a_quantized_policy_comes_back_whole",
    "qat/test_qat_saved.py::test_reading_a_saved_model_gives_what_it_acts_with",
    "readers/test_readers_sb2.py::test_a_missing_or_misshapen_variable_is_refused",
    "test_calibration.py::test_static_rows_that_hardly_read_anything_keep_their_bias_and_cost_others_no_bits",
)
"""Tests over many like cases, such as networks x schemes x widths. The default tier runs every SHARE-th case, drawn by
its name."""
SHARE = 6
MAX_OPTIMIZER_STEPS = 250
"""A step of the small networks of tests takes 1 to 2 ms, with what Stable-Baselines3 does around it."""
STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen")
"""Audit events of a new process."""
PROBES = ("uname", "ldconfig", "gcc", "ld", "lsb_release")
"""Programs that packages ask about the machine while they are imported, whichever test imports them first. glfw loads
its library in a Python of its own."""


def is_left_out(name: str) -> bool:
    """Return whether the default tier leaves out that case of a sampled test."""
    return name.partition("[")[0] in SAMPLED and zlib.crc32(name.encode()) % SHARE > 0


class Guard:
    """Fails the running test at its first process or beyond its optimizer steps, unless it is allowed both."""

    def __init__(self) -> None:
        self.allowed = True
        self.optimizer_steps = 0
        self.watches_torch = False
        sys.addaudithook(self.audit)
        # multiprocessing starts its processes without an audit event
        self.spawn = multiprocessing.util.spawnv_passfds
        multiprocessing.util.spawnv_passfds = self.audit_spawn

    def start(self, allowed: bool) -> None:
        """Begin with a test, its fixtures included."""
        self.allowed = allowed
        self.optimizer_steps = 0
        if "torch" in sys.modules and not self.watches_torch:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self.count_step)
            self.watches_torch = True

    def stop(self) -> None:
        """Allow everything between tests."""
        self.allowed = True

    def refuse(self, deed: str) -> None:
        """Fail the running test, which did that, unless it is allowed."""
        if not self.allowed:
            pytest.fail(f"this test {deed}: mark it with pytest.mark.slow, which `make test` leaves out")

    def count_step(self, *_: object) -> None:
        """Count a step of any optimizer of this process."""
        self.optimizer_steps += 1
        if self.optimizer_steps > MAX_OPTIMIZER_STEPS:
            self.refuse(f"makes more than {MAX_OPTIMIZER_STEPS} optimizer steps")

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at an audit event."""
        if event in STARTS and not self.allowed:
            program = PurePath(os.fsdecode(arguments[0])).name if arguments and arguments[0] else event
            if program not in PROBES and "glfwGetVersion" not in str(arguments[1:]):
                self.refuse(f"starts a process ({program})")

    def audit_spawn(self, path: Any, arguments: Sequence[Any], *others: Any) -> int:
        """Look at a process of multiprocessing, but not at the tracker of its shared memory."""
        if not any("resource_tracker" in os.fsdecode(word) for word in arguments):
            self.refuse("starts a process (multiprocessing)")
        return self.spawn(path, arguments, *others)
