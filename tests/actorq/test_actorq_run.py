"""Whole runs of `quarl actorq`: real processes, and everything that they leave behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from stable_baselines3 import DQN, TD3

from quarl import qat
from quarl.actorq.actor import AT_ONCE
from quarl.actorq.shared_memory import PREFIX
from quarl.actorq.supervisor import warn_about_cores
from quarl.algorithms.d4pg import D4PG
from quarl.api import load
from quarl.cli import main, parse
from quarl.commands.actorq import _table
from quarl.commands.training_page import _spent
from quarl.files import locked
from quarl.formats import number, three_digits
from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

SMALL = "batch_size:32 learning_starts:200 buffer_size:5000 train_freq:4 target_update_interval:100"


def run(folder, *words: str) -> int:
    """Stable-Baselines3's hyper-parameters, where nothing else is said."""
    preset = () if "--preset" in words or "--resume" in words else ("--preset", "none")
    return main(["actorq", *words, *preset, "-o", str(folder)])


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished DQN run: two int8 actors, 6-bit weights on the wire, an evaluation in between."""
    folder = tmp_path_factory.mktemp("run") / "out"
    code = run(
        folder,
        *("--algo", "dqn", "--env", "CartPole-v1", "-n", "3000", "--actors", "2", "--net-arch", "64,64"),
        *("--n-steps", "3"),
        *("--comm-bits", "6", "--weight-compress", "zstd", "--publish-interval", "5", "--eval-freq", "1500"),
        *("--eval-episodes", "3", "--json", str(folder.parent / "rows.json"), "--params", *SMALL.split()),
    )
    assert code == 0
    return folder


def test_it_makes_all_steps_and_the_updates_that_belong_to_them(finished):
    summary = json.loads((finished / "summary.json").read_text())["rows"][0]
    assert summary["timesteps"] == 3000
    assert summary["updates"] == (3000 - 200) // 4
    assert summary["actor_deaths"] == 0
    assert json.loads((finished.parent / "rows.json").read_text())["command"] == "actorq"
    assert not list(Path("/dev/shm").glob(f"{PREFIX}{os.getpid()}-*"))


def test_metrics_say_where_time_and_bytes_went(finished):
    last = rows(finished / "metrics.jsonl")[-1]
    assert last["timesteps"] == 3000
    # the one may have made the last steps while the other was in the middle of a block
    assert 3000 <= sum(actor["steps"] for actor in last["actors"]) <= 3000 + AT_ONCE
    assert last["published_version"] == last["version"]
    assert last["learner"]["duplicates"] == last["learner"]["gaps"] == 0
    assert last["publisher"]["share_of_fp32"] < 0.35  # 6 of 32 bits, and the names of a small network
    for actor in last["actors"]:
        parts = [value for name, value in actor.items() if name.endswith("_s") and name != "loop_s"]
        assert 0 < sum(parts) <= actor["loop_s"] * 1.01
        assert actor["pulls"] > 0
    assert [actor["sigma"] for actor in last["actors"]] == [1.0, 8.0]  # the ladder: powers of epsilon


def test_both_policies_are_evaluated_and_the_clock_does_not_run_meanwhile(finished):
    found = rows(finished / "evaluations.jsonl")
    assert [entry["timesteps"] for entry in found] == [1500, 3000, 3000]
    assert found[-1]["episodes"] >= 20
    assert all(entry["version"] == entry["version_quantised"] for entry in found)
    assert found[-1]["clock_s"] - found[-2]["clock_s"] < 1  # of which evaluations would be many
    assert all({"return", "return_quantised", "return_low", "return_quantised_high"} <= set(e) for e in found)


def test_the_learner_is_a_stable_baselines3_model_and_its_policies_are_artefacts(finished):
    model = DQN.load(finished / "model.zip")
    assert model.n_steps == 3  # also where it is trained on
    exact, quantized = (load(finished / f"policy-{name}.safetensors") for name in ("fp32", "int6"))
    observations = np.random.default_rng(0).uniform(-1, 1, (200, 4)).astype(np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    assert (exact.predict(observations)[0] == expected).all()
    assert quantized.policy.spec.precision == "int6"
    assert max(int(np.abs(op.weight.codes).max()) for op in quantized.policy.linear) <= 31


def test_the_final_policy_is_distilled_for_the_precision_of_the_actors(tmp_path, capsys):
    folder = tmp_path / "out"
    words = ("--algo", "dqn", "--env", "CartPole-v1", "-n", "400", "--actors", "1", "--net-arch", "8,8", "--distill")
    assert run(folder, *words, "--eval-episodes", "0", "--params", *SMALL.split()) == 0
    (row,) = json.loads((folder / "summary.json").read_text())["rows"]
    (taught,) = json.loads((folder / "distilled" / "rows.json").read_text())["rows"]
    assert (taught["precision"], taught["bits_mean"]) == ("int8", 8)
    assert row["distilled"] == taught["mean"]
    assert f"return distilled for int8: {number(taught['mean'])}; {folder / 'distilled'}" in capsys.readouterr().out
    # its teacher is what the learner ended with
    teacher, student = (
        load(folder / name).policy for name in ("policy-fp32.safetensors", "distilled/int8.safetensors")
    )
    assert student.provenance == teacher.provenance
    assert [op.name for op in student.linear] == [op.name for op in teacher.linear]


def test_the_page_has_the_numbers_of_the_run(finished):
    page, last = (finished / "report.html").read_text(), rows(finished / "metrics.jsonl")[-1]
    taken = sum(actor["pulls"] - actor["skipped"] for actor in last["actors"])
    facts = (
        "3,000 of 3,000, 700 updates",
        f"{last['publisher']['published']:,} published, {taken:,} taken by actors",
        f"{100 * last['publisher']['share_of_fp32']:.0f} % of float32",
        "0 deaths of actors, 0 of the publisher; 0 environments raised",
        "return of the int8 policy sent in 6 bits",
        f"{three_digits(last['staleness_p50'])} updates in the median",
    )
    for fact in facts:
        assert fact in page
    assert (finished / "curve.png").stat().st_size > 10_000


def test_seconds_of_a_run_in_parts_add_up_to_its_clock_and_are_counted_once():
    actor = dict.fromkeys(("inference_s", "environment_s", "insert_s", "pull_s", "deserialize_s", "load_s"), 1.0)
    part = {
        "learner": {"train_s": 10.0, "insert_s": 1.0, "push_s": 2.0, "checkpoint_s": 3.0, "wait_s": 4.0},
        "publisher": {"published": 500, "pull_ms": 1.0, "pack_ms": 4.0, "quantize_ms": 3.0, "publish_ms": None},
        "actors": [{**actor, "wait_s": 5.0, "stale_s": 0.5}],
    }
    spent = _spent([part, part], 100.0)
    assert {process: sum(seconds.values()) for process, seconds in spent.items()} == dict.fromkeys(spent, 100.0)
    learner = {"updates": 20.0, "experience": 2.0, "weights": 4.0, "checkpoints": 6.0, "waiting": 8.0, "other": 60.0}
    assert spent["learner"] == learner
    assert spent["publisher"] == {"quantizing": 3.0, "weights": 2.0, "waiting": 95.0}
    assert spent["actor\n0"]["waiting"] == 11.0
    assert spent["actor\n0"]["weights"] == 6.0


def test_a_finished_run_is_not_overwritten_by_accident(finished, capsys):
    assert run(finished, "--algo", "dqn", "-n", "100") == 2
    assert "holds a run" in capsys.readouterr().err


def test_an_environment_that_only_the_command_itself_can_make_is_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "only_parents.py").write_text(
        "import multiprocessing, gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Env(CartPoleEnv):\n"
        "    def __init__(self, **kwargs):\n"
        "        if multiprocessing.parent_process() is not None:\n"
        "            raise RuntimeError('no display')\n"
        "        super().__init__(**kwargs)\n"
        "gymnasium.register('OnlyParents-v0', entry_point=Env, max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run(tmp_path / "out", "--env", "only_parents:OnlyParents-v0", "-n", "2000", "--actors", "1") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("environment 'only_parents:OnlyParents-v0' cannot be made (RuntimeError): no display")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "out") == 2
    assert "cannot write to" in capsys.readouterr().err


def test_the_zip_is_read_where_quarl_is_not_installed(finished):
    code = (
        "import sys\n"
        "sys.modules['quarl'] = None\n"  # an import of it fails
        "from stable_baselines3 import DQN\n"
        f"print(DQN.load({str(finished / 'model.zip')!r}).num_timesteps)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["3000"], ended.stderr


def test_two_runs_in_one_folder_are_one_too_many(tmp_path, capsys):
    with locked(tmp_path):
        assert run(tmp_path, "--algo", "dqn", "-n", "1000") == 2
    assert "another quarl run is using" in capsys.readouterr().err


def test_float_actors_with_rounded_weights_have_a_file_of_their_own(tmp_path, capsys):
    words = ("--algo", "td3", "--env", "Pendulum-v1", "-n", "300", "--actors", "1", "--net-arch", "16,16")
    words += ("--actor-precision", "fp32", "--comm-bits", "4", "--eval-freq", "0")
    assert run(tmp_path / "out", *words, "--params", "learning_starts:100", "buffer_size:1000") == 0
    assert "return of the fp32 policy sent in 4 bits:" in capsys.readouterr().out
    exact, sent = (load(tmp_path / "out" / f"policy-{name}.safetensors") for name in ("fp32", "fp32-comm4"))
    model = TD3.load(tmp_path / "out" / "model.zip")
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    assert np.allclose(exact.predict(observations)[0], expected, atol=1e-5)
    assert not np.allclose(sent.predict(observations)[0], expected, atol=1e-3)


def test_quantisation_that_was_asked_for_and_never_acted_is_no_result(tmp_path, capsys):
    words = ("--algo", "dqn", "-n", "20000", "--updates", "20", "--actors", "1", "--net-arch", "16,16")
    words += ("--qat", "w8a8", "--eval-freq", "0")
    assert run(tmp_path / "out", *words, "--params", "learning_starts:100", "buffer_size:1000") == 2
    assert "before fake quantization began at step 10,000" in capsys.readouterr().err
    assert list((tmp_path / "out").glob("checkpoint-*"))
    assert not (tmp_path / "out" / "model.zip").exists()


def test_a_run_that_trains_for_what_its_actors_run(tmp_path):
    """D4PG with six environments to an actor, which sends them as a block, quantisation-aware."""
    words = ("--algo", "d4pg", "--env", "Pendulum-v1", "-n", "1200", "--actors", "1", "--envs-per-actor", "6")
    words += ("--net-arch", "32,32", "--qat", "w8a8", "--quant-delay", "600", "--eval-freq", "0")
    params = ("qf_arch:[32,32]", "learning_starts:200", "batch_size:32", "buffer_size:5000")
    assert run(tmp_path / "out", *words, "--params", *params) == 0
    (entry,) = rows(tmp_path / "out" / "evaluations.jsonl")
    assert entry["trained_for"] is True
    assert entry["return_low"] <= entry["return"] <= entry["return_high"]
    assert entry["return_quantised_low"] <= entry["return_quantised"] <= entry["return_quantised_high"]
    last = rows(tmp_path / "out" / "metrics.jsonl")[-1]
    assert (last["timesteps"], last["updates"]) == (1200, 1000)
    assert last["learner"]["duplicates"] == last["learner"]["gaps"] == 0
    model = D4PG.load(tmp_path / "out" / "model.zip", device="cpu")
    assert 600 <= qat.switched_at(model) <= 1200
    low, high = model.critic.support  # of the rewards that came
    assert (-1700 < low < -400, high) == (True, 0)
    found = load(tmp_path / "out" / "policy-int8.safetensors").policy
    expected = qat.quantized_policy(model)
    assert sorted(found.grids) == sorted(expected.grids)
    for name, grid in expected.grids.items():
        got = found.grids[name]
        assert (got.scale, got.zero_point, got.bits) == (grid.scale, grid.zero_point, grid.bits)
    for mine, own in zip(found.linear, expected.linear, strict=True):
        assert np.array_equal(mine.weight.codes, own.weight.codes)


def test_the_live_view_tells_how_it_goes(finished):
    config = parse(["actorq", "--algo", "dqn", "--actors", "2", "-n", "3000", "--comm-bits", "6"])
    last, evaluations = rows(finished / "metrics.jsonl")[-1], rows(finished / "evaluations.jsonl")
    last |= {"timesteps_per_s": 1234.5}  # the clock may have stood still since the row before
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(_table(config, last, evaluations))
    shown = " ".join(console.export_text().replace("│", " ").split())
    assert "environment steps 3,000 of 3,000" in shown
    assert f"updates {last['updates']:,} " in shown
    assert f"evaluated fp32 {evaluations[-1]['return']:.1f}" in shown
    assert f"evaluated int8 {evaluations[-1]['return_quantised']:.1f}" in shown
    assert f"version {last['version']:,} (published {last['published_version']:,})" in shown
    assert "steps/s 1,234.5" in shown
    assert "actors alive 2 of 2" in shown
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(_table(config, last | {"return_mean": None, "updates_per_s": None}, []))
    assert "evaluated fp32 –" in " ".join(console.export_text().replace("│", " ").split())


@pytest.mark.parametrize(("cores", "nodes", "lines"), [(2, None, 1), (3, None, 0), (2, 3, 1), (3, 3, 0)])
def test_more_processes_than_cores_are_told(monkeypatch, capsys, cores, nodes, lines):
    monkeypatch.setattr("quarl.actorq.supervisor.usable_cores", lambda: cores)
    config = parse(["actorq", "--actors", "2"])
    if nodes is not None:  # actors of other machines are on other cores
        config = replace(config, cluster="10.0.0.1:6379", actors=2 * nodes, actors_per_node=2)
    warn_about_cores(config)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all("2 actors and a learner share 2 cores" in line for line in said)


def test_checkpoints_that_are_all_damaged_end_in_one_line(tmp_path, capsys):
    words = ("--algo", "dqn", "-n", "300", "--actors", "1", "--net-arch", "8", "--eval-freq", "0")
    words += ("--params", "learning_starts:100", "buffer_size:500")
    out = tmp_path / "out"
    assert run(out, *words) == 0
    kept = {path.name: path.read_bytes()[:100] for path in out.glob("checkpoint-*")}
    assert kept
    for name, begin in kept.items():
        (out / name).write_bytes(begin)
    capsys.readouterr()
    assert run(out, "--resume", "-n", "600") == 2
    said = capsys.readouterr().err
    assert f"all {len(kept)} checkpoints in {out} are damaged; start again in another folder, or without these" in said
    assert "Traceback" not in said
    assert {path.name: path.read_bytes() for path in out.glob("checkpoint-*")} == kept


def test_one_environment_at_a_time_is_enough_and_threads_of_a_bridge_hold_no_process(tmp_path):
    words = ["--algo", "ddpg", "--env", "difficult_environments:Device-v0", "-n", "300", "--actors", "1"]
    words += ["--net-arch", "8", "--params", "learning_starts:50", "batch_size:8", "buffer_size:2000", "-o", "out"]
    words += ["--eval-freq", "0", "--eval-episodes", "2"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "DEVICE": str(tmp_path / "device")}
    command = [sys.executable, "-m", "quarl", "actorq", *words]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    said = done.stderr.splitlines()
    assert done.returncode == 0, said
    assert said[-1].startswith("quarl: left behind threads that still run: bridge")
    assert "left behind threads" in (tmp_path / "out/actor-0.log").read_text()
    summary = json.loads((tmp_path / "out/summary.json").read_text())["rows"][0]
    assert summary["timesteps"] == 300
    assert summary["actor_deaths"] == 0
    assert (tmp_path / "out/policy-int8.safetensors").is_file()
    assert summary["final"]["episodes"] == 20
    assert {"return", "return_quantised"} <= summary["final"].keys()


def test_what_an_environment_does_wrong_is_said_before_anything_starts(tmp_path, capsys):
    assert run(tmp_path / "out", "--algo", "ddpg", "--env", "difficult_environments:ShortLater-v0") == 2
    said = "quarl: ShortLater-v0 gave an observation of float32 (1,) but its space has float32 (2,)"
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)
    assert not (tmp_path / "out").exists()


def test_actors_learner_and_evaluations_play_what_the_environment_is_told(needs, tmp_path, capsys):
    assert run(tmp_path / "out", "--env", needs, "-n", "400") == 2
    assert "missing 1 required positional argument: 'target'" in capsys.readouterr().err
    told = ["--params", "env_kwargs:dict(target=0.5)", *SMALL.split(), "--env-kwargs", "target:0.25"]
    told += ["--frame-stack", "2", "--max-episode-steps", "8"]
    words = ["--env", needs, "-n", "400", "--actors", "1", "--eval-freq", "0", *told]
    assert run(tmp_path / "out", *words) == 0
    (summary,) = json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]
    assert (summary["final"]["return"], summary["final"]["return_quantised"]) == (2.0, 2.0)
    policy = load(tmp_path / "out" / "policy-int8.safetensors")
    assert policy.policy.observation_shape == (4,)
    assert policy.evaluate(episodes=2, env_id=needs).returns.tolist() == [2.0, 2.0]
