"""The command line: exit codes, one-line errors, and files that match what is printed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import DQN

import contracts
import require
from networks import cartpole, dense
from quarl import __version__
from quarl.cli import main, parse
from quarl.commands import actorq, demo
from quarl.config import VERBS, ActorQConfig
from quarl.config.base import narrow_edges
from quarl.config.words import below
from quarl.errors import QuarlError
from quarl.latency import network_latency
from quarl.policy import artifact
from quarl.policy.graph import ActionHead
from quarl.post_training import measure
from refusals import refused

pytestmark = pytest.mark.usefixtures("elsewhere")

PNGS = ("choice.png", "difference.png", "sweetspot.png", "weights.png")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with policy.safetensors, sampled.safetensors (PPO), CartPole-v1.zip, cut.zip, a DQN as a zoo's ppo."""
    folder = tmp_path_factory.mktemp("models")
    policy = cartpole()
    artifact.write(policy, folder / "policy.safetensors")
    artifact.write(replace(policy, provenance=replace(policy.provenance, algo="ppo")), folder / "sampled.safetensors")
    agent = DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, buffer_size=1, device="cpu")
    path = folder / "CartPole-v1.zip"
    agent.save(path)
    (folder / "cut.zip").write_bytes(path.read_bytes()[:2000])
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("data", b"0" * 10_000_000)
    run = folder / "zoo" / "ppo" / "CartPole-v1_1"
    run.mkdir(parents=True)
    (run / "CartPole-v1.zip").write_bytes(path.read_bytes())
    (folder / "unmounted").symlink_to("/nowhere/disk")
    return folder


def test_version(capsys):
    assert main(["--version"]) == main(["version"]) == main(["help", "version"]) == 0
    assert capsys.readouterr().out == 3 * f"quarl {__version__}\n"


def helped(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", [[], ["ptq"], ["study", "report"]])
def test_help_is_a_verb_too(capsys, verb):
    assert helped(capsys, "help", *verb) == helped(capsys, *verb, "--help")


@pytest.mark.slow
def test_usage_lines_oblige_to_nothing_that_has_a_default(capsys):
    """What stands before the options is in brackets where the verb does without, and required where it does not."""
    for verb, config in CONFIGS.items():
        usage, _, rest = helped(capsys, *verb.split(), "--help").partition("\n\n")
        if not set(config.positional) & {field.name for field in dataclasses.fields(config)} or verb == "bench":
            continue  # bench refuses to run without its one constant word
        refused = None
        try:
            parse(verb.split()).check()
        except QuarlError as error:
            refused = str(error)
        if refused is None:
            assert "(required)" not in rest, verb
            assert usage.endswith("] [options]"), verb
        else:
            assert re.search(r"[A-Z]+ is missing", refused), verb
            assert "(required)" in rest, verb
            assert re.search(r" [A-Z]{2,}( \.\.\.)? \[options\]$", usage), verb


@pytest.mark.slow
def test_the_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "quarl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"quarl {__version__}\n"


CONFIGS = {verb.verb: verb for kind in VERBS for verb in below(kind)}


@pytest.mark.parametrize("verb", CONFIGS)
def test_every_verb_explains_every_option(verb, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse([*verb.split(), "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "--json FILE" in shown
    assert "{None}" not in shown
    entries = dict(re.findall(r"^  (\S.*?)(?:  +|\n +)(\S.*(?:\n {24}.*)*)", shown, re.MULTILINE))
    for field in dataclasses.fields(CONFIGS[verb]):
        if field.name in CONFIGS[verb].positional:
            continue
        name = f"--{field.name.replace('_', '-')}"
        (text,) = [said for option, said in entries.items() if re.search(rf"(^|, ){name}( |$)", option)]
        assert len(text.partition("(default")[0].split()) > 1, f"{name}: {text}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "Expected one of {ptq, distill, train, .*demo}; see quarl --help"),
        ("--seed 3 ptq a.zip", "ptq cannot take --seed at this position; see quarl --help"),
        ("pqt m.zip", r"unknown verb 'pqt'; did you mean 'ptq'\? \(known: ptq, distill, train, "),
        ("study rnu smoke", "Expected one of {run, status, report}; see quarl study --help"),
        ("bench throughput", "quarl bench needs the word latency, as in quarl bench latency MODEL; see"),
        ("train --aglo ppo --env x", "train has no option --aglo; did you mean '--algo'; see quarl train --help"),
        ("ptq a.zip --frob", "ptq has no option --frob; see quarl ptq --help"),
        ("inspect a.zip --bits 8 4", "inspect got an unexpected argument '4'; see quarl inspect --help"),
        ("ptq a.zip --seed x", "Error parsing --seed: 'x' is not a whole number; see quarl ptq --help"),
        ("actorq --actors 2.5", "Error parsing --actors: '2.5' is not a whole number"),
        ("train -n inf", "'inf' is not a whole number"),
        ("train --energy-watts x", "Error parsing --energy-watts: 'x' is not a number"),
        ("ptq a.zip --mode foo", r"'foo' for argument '--mode'\. Expected one of \('dynamic', 'static'\); see"),
        ("actorq --learning_rate=1e-3", "no option --learning_rate; use --params learning_rate:1e-3; see"),
        ("train --num-threads 2", "no option --num-threads; use --threads; see"),
        ("actorq --num-threads 2", "no option --num-threads; use --learner-threads; see"),
        ("train --env-file x", "train has no option --env-file; see quarl train --help"),
        ("ptq x --environment CartPole-v1", "did you mean '--env'"),
        ("help frob", r"unknown verb 'frob' \(known: ptq, "),
        ("completion", "requires one of bash, zsh, fish"),
    ],
)
def test_words_that_no_verb_knows_are_one_line(words, said, capsys):
    assert re.search(said, refused(capsys, *words.split()))


def test_counts_may_be_written_as_people_say_them():
    config = parse(["train", "-n", "1e5", "--eval-freq", "1e4", "--n-envs", "4", "--energy", "--energy-watts", "1e1"])
    assert (config.n_timesteps, config.eval_freq, config.n_envs, config.energy_watts) == (100_000, 10_000, 4, 10.0)
    assert isinstance(config.n_timesteps, int)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ptq a b c", "got 3 words"),
        ("ptq a b", "-f FOLDER"),
        ("ptq a -f b", "drop -f"),
        ("ptq {}/cut.zip", "cut.zip"),
        ("ptq ppo CartPole-v1 -f {}/zoo", "dqn|DQN"),
        ("ptq {}/policy.safetensors --bits eight", "unknown precision 'eight'"),
        (f"ptq {{}}/policy.safetensors --json {'x' * 300}", "is too long: choose another"),
        ("ptq {}/policy.safetensors -o {}/cut.zip", "it is a file"),
        ("eval {}/policy.safetensors --stochastic --deterministic", "keep one"),
        ("eval {}/zoo", "zoo has neither zoo.zip nor best_model.zip; name agents in it as ALGO ENV -f "),
        ("bench latency --widths 64,x", "--widths '64,x'"),
        ("ptq {}/policy.safetensors -o {}/unmounted", "unmounted: it is a link to nothing"),
        ("study run smoke -o /proc/zz", "cannot write to /proc/zz"),
        ("eval {}/bomb.zip", "bomb.zip"),
        ("eval {}/policy.safetensors --wrapper TimeLimit:max_steps=7", "unexpected keyword argument 'max_steps'"),
        ("eval {}/policy.safetensors --env-kwargs target:0.3", "got an unexpected keyword argument 'target'"),
        ("envs CartPol-v1", "did you mean 'CartPole-v1'"),
        ("envs --suite atary", r"unknown suite 'atary'; did you mean 'atari'\? \(known: classic, "),
        ("envs CartPole-v1 Acrobot-v1", "ID is one environment, got 2 words"),
        ("envs CartPole-v1 --suite classic", "drop --suite"),
        ("envs no_such_module:Mine-v0", "cannot import 'no_such_module'"),
    ],
)
def test_mistakes_are_one_line_exit_with_2_and_leave_nothing(words, said, models, capsys, tmp_path):
    assert re.search(said, refused(capsys, *words.format(models, models).split()))
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_exits_with_130_and_leaves_nothing(models, capsys, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("quarl.post_training.measure.measure", interrupted)
    assert main(["ptq", str(models / "policy.safetensors")]) == 130
    assert capsys.readouterr().err == "quarl: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_an_import_is_still_ctrl_c(models, capsys, monkeypatch):
    """Extension modules make an ImportError of it."""

    def imported(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(9)  # another thread may be the one that gets it
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None

    monkeypatch.setattr("quarl.post_training.measure.measure", imported)
    assert main(["ptq", str(models / "policy.safetensors")]) == 130
    assert capsys.readouterr().err == "quarl: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_ptq_writes_what_it_prints(models, capsys, tmp_path):
    words = ["ptq", str(models / "policy.safetensors"), "--bits", "fp32", "fp16", "8", "4"]
    words += ["--scheme", "default", "naive", "--episodes", "3", "--seed", "5", "-o", "out", "--json", "rows.json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # the progress bar is for terminals
    document = contracts.read(tmp_path / "rows.json")
    assert document == json.loads((tmp_path / "out" / "rows.json").read_text())
    assert [document[key] for key in ("command", "algo", "env_id", "seed")] == ["ptq", "dqn", "CartPole-v1", 5]
    expected = [("fp32", "default"), ("fp16", "default"), ("int8", "default"), ("int4e8", "default")]
    expected += [("int8", "naive"), ("int4", "naive")]
    assert [(row["precision"], row["scheme"]) for row in document["rows"]] == expected
    printed = [line.split() for line in captured.out.splitlines()]
    table = [
        words for words in printed if words and words[0] in ("fp32", "fp16", "int8", "int4e8", "int4") and "±" in words
    ]
    assert [words[0] for words in table] == [precision for precision, _ in expected]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("rows.json", "rows.csv", "returns.csv", "tables.tex", "report.html", *PNGS),
        *("fp32.safetensors", "fp16.safetensors"),
        *(f"{name}.safetensors" for name in ("int8-default", "int4e8-default", "int8-naive", "int4-naive")),
    }
    assert (tmp_path / "out" / "report.html").stat().st_size < 1_000_000
    (repeat,) = [line for line in captured.out.splitlines() if line.startswith("repeat: ")]
    assert parse(shlex.split(repeat)[2:]) == parse(words)
    assert "already quantized (int8)" in refused(capsys, "ptq", "out/int8-default.safetensors")
    assert main(["ptq", "out/fp32.safetensors", "--bits", "4", "--episodes", "2", "--seed", "5", "-o", "again"]) == 0
    again, first = (artifact.read(path) for path in ("again/int4e8.safetensors", "out/int4e8-default.safetensors"))
    assert all((a.weight.codes == b.weight.codes).all() for a, b in zip(again.linear, first.linear, strict=True))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("ptq m.zip --bits int8e4 4", "int8e4: its first and last layers have fewer bits than the others"),
        ("ptq m.zip --bits 4 2 --edge-bits 3", "--edge-bits 3 is below 4: all its layers keep one width"),
        ("train --qat w4a8e2", "w4a8e2: its first and last layers have fewer bits than the others"),
        ("actorq --actor-precision int6 --edge-bits 4", "--edge-bits 4 is below int6: all its layers keep one width"),
        ("ptq m.zip --bits 16 8 4 2", ""),
        ("ptq m.zip --edge-bits same", ""),
    ],
)
def test_edges_of_fewer_bits_than_the_others_are_said(words, line):
    assert "".join(narrow_edges(parse(words.split()))) == line


@pytest.mark.slow
def test_ptq_of_an_agent_that_names_no_environment_keeps_the_one_that_was_named(capsys, tmp_path):
    artifact.write(dense([4, 16, 2]), tmp_path / "plain.safetensors")
    words = ["--bits", "4", "--episodes", "2", "-o", "out"]
    assert main(["ptq", "plain.safetensors", "--env", "CartPole-v1", *words]) == 0
    assert main(["eval", "out/int4e8.safetensors", "--episodes", "2"]) == 0
    artifact.write(dense([4, 16, 2]), tmp_path / "out" / "mine.safetensors")
    words[1] = "6"
    assert main(["ptq", str(tmp_path / "plain.safetensors"), "--env", "CartPole-v1", *words]) == 0
    left = {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    assert left == {"fp32.safetensors", "int4e8.safetensors", "int6e8.safetensors", "mine.safetensors"}
    said = " ".join(capsys.readouterr().out.split())
    assert "replaced in out: choice.png, difference.png, fp32.safetensors, report.html, returns.csv, rows.c" in said
    assert "kept in out, of an earlier run and not of this one: int4e8.safetensors, mine.safetensors" in said
    artifact.write(dense([4, 8, 2]), tmp_path / "other.safetensors")
    message = f"out holds results of {tmp_path / 'plain.safetensors'}: choose another -o, or remove them"
    assert message in refused(capsys, "ptq", "other.safetensors", "--env", "CartPole-v1", *words)


@pytest.mark.slow
def test_two_ptq_runs_into_one_folder_end_well_and_leave_the_whole_result_of_the_last(tmp_path):
    """Both are held in their episodes until the other is there too, then they end as they come."""
    artifact.write(dense([4, 16, 2]), tmp_path / "plain.safetensors")
    code = (
        "import sys, gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "from quarl.cli import main\n"
        "class Waits(CartPoleEnv):\n"
        "    def reset(self, **options):\n"
        "        global waited\n"
        "        if not waited:\n"
        "            waited = True\n"
        "            print('at work', file=sys.stderr, flush=True); sys.stdin.readline()\n"
        "        return super().reset(**options)\n"
        "waited = False\n"
        "gymnasium.register('Waits-v0', Waits, max_episode_steps=10)\n"
        "sys.exit(main(['ptq', 'plain.safetensors', '--env', 'Waits-v0', '--episodes', '2', '-o', 'out',"
        " '--bits', *sys.argv[1:]]))\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen([sys.executable, "-c", code, *bits], cwd=tmp_path, **pipes) for bits in "48"]
    for run in runs:
        assert run.stderr.readline() == "at work\n"
    for run in runs:
        run.stdin.write("\n")
        run.stdin.flush()
    said = [run.communicate() for run in runs]
    assert [(run.returncode, errors) for run, (_, errors) in zip(runs, said, strict=True)] == [(0, "")] * 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("rows.json", "rows.csv", "returns.csv", "tables.tex", "report.html", *PNGS, "fp32.safetensors"),
        *("int4e8.safetensors", "int8.safetensors"),
    }
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())["rows"]
    last, first = ("4e8", "8") if rows[-1]["precision"] == "int4e8" else ("8", "4e8")
    assert [row["precision"] for row in rows] == ["fp32", f"int{last}"]
    lines = [line.split(",")[0] for line in (tmp_path / "out" / "rows.csv").read_text().splitlines()[1:]]
    assert lines == [row["precision"] for row in rows]
    assert f"--bits {last[0]}" in (tmp_path / "out" / "report.html").read_text()
    kept = [" ".join(out.split()) for out, _ in said if "kept in out" in out]
    assert len(kept) == 1
    assert f"of an earlier run and not of this one: int{first}.safetensors" in kept[0]


@pytest.mark.slow
def test_results_of_another_agent_that_came_meanwhile_are_not_replaced(capsys, monkeypatch, tmp_path):
    artifact.write(dense([4, 16, 2]), tmp_path / "plain.safetensors")
    measure_all = measure.measure

    def measured(*args, **keywords):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "rows.json").write_text('{"model": "other.zip", "rows": []}')
        return measure_all(*args, **keywords)

    monkeypatch.setattr("quarl.post_training.measure.measure", measured)
    words = ["ptq", "plain.safetensors", "--env", "CartPole-v1", "--bits", "4", "--episodes", "2", "-o", "out"]
    said = refused(capsys, *words)
    folder = tmp_path / said.rpartition("the results are in ")[2].strip()
    assert "out holds results of other.zip" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rows.json"]
    assert (folder / "int4e8.safetensors").is_file()


def test_one_episode_has_no_interval(models, capsys, tmp_path):
    assert main(["eval", str(models / "policy.safetensors"), "--episodes", "1", "--json", "row.json"]) == 0
    document = contracts.read(tmp_path / "row.json")
    assert (document["rows"][0]["ci_low"], document["rows"][0]["ci_high"]) == (None, None)
    assert re.search(r"± 0\.00 +– ", capsys.readouterr().out)
    final = {"return": 7.0, "return_low": None, "return_high": None, "episodes": 1}
    summary = {"clock_s": 60.0, "timesteps": 1, "updates": 1, "final": final}
    assert "return of the fp32 policy: 7.00 –, 1 episode" in list(actorq._sentences(ActorQConfig(), summary))


def test_rows_on_stdout_are_nothing_but_json(models, capfd, tmp_path):
    assert main(["eval", str(models / "policy.safetensors"), "--episodes", "2", "--json", "-"]) == 0
    captured = capfd.readouterr()
    contracts.check(json.loads(captured.out))
    assert f"repeat: quarl eval {models / 'policy.safetensors'} --json -" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_pipe_and_a_link_get_the_rows_and_stay_what_they_are(models, tmp_path):
    os.mkfifo("pipe")
    Path("link").symlink_to("linked.json")
    Path("linked.json").write_text('["of the last time"]')
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE)
    for name in ("pipe", "link"):
        assert main(["eval", str(models / "policy.safetensors"), "--episodes", "2", "--json", name]) == 0
    shown, _ = reader.communicate()
    for text in (shown, Path("linked.json").read_text()):
        contracts.check(json.loads(text))
    assert Path("pipe").is_fifo()
    assert Path("link").is_symlink()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("CartPole-v1.zip", "deterministic"),
        ("policy.safetensors", "deterministic"),
        ("sampled.safetensors", "deterministic"),
        ("sampled.safetensors", "stochastic"),
    ],
)
def test_eval_plays_any_policy_in_either_way(name, how, models, capsys, tmp_path):
    assert main(["eval", str(models / name), "--episodes", "4", "--json", "eval.json", f"--{how}"]) == 0
    (row,) = contracts.read(tmp_path / "eval.json")["rows"]
    assert (row["precision"], row["episodes"], row["stochastic"]) == ("fp32", 4, how == "stochastic")
    assert f" {row['steps']} " in capsys.readouterr().out


def test_inspect_writes_the_original_s_line(models, capsys, tmp_path):
    words = ["inspect", str(models / "policy.safetensors"), "--bits", "int4", "--json", "inspect.json"]
    assert main(words) == 0
    document = contracts.read(tmp_path / "inspect.json")
    assert [row["shape"] for row in document["rows"]] == [[16, 4], [2, 16]]
    assert [sum(row["histogram"]["counts"]) for row in document["rows"]] == [64, 32]
    assert all(row["levels"] <= 15 for row in document["rows"])
    number = r"-?\d+\.\d+"
    line = (tmp_path / "quarl-inspect" / "output.txt").read_text()
    assert re.fullmatch(
        rf"policy\.safetensors : weight_bias_min: {number} , weight_bias_max: {number} , range: {number}\n", line
    )
    assert line in capsys.readouterr().out
    assert (tmp_path / "quarl-inspect" / "weights.png").is_file()


def test_bench_latency_measures_the_widths_it_is_given(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(network_latency, "measure", partial(network_latency.measure, seconds=0.01))
    assert main(["bench", "latency", "--widths", "8", "4,4", "--json", "latency.json"]) == 0
    assert list(dict.fromkeys(row["network"] for row in contracts.read(tmp_path / "latency.json")["rows"])) == [
        "8",
        "4-4",
    ]
    assert "4-4" in capsys.readouterr().out


@pytest.mark.slow
def test_demo_shows_a_clear_agent_beside_naive_and_its_limits(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "BITS", ("8", "2"))
    assert main(["demo", "-o", "out", "--seed", "3", "--json", "rows.json"]) == 0
    shown = capsys.readouterr().out
    assert f"trained by {demo.TRAINED}\n" in shown
    (repeat,) = [line for line in shown.splitlines() if line.startswith("repeat: quarl ptq out/CartPole-v1.quarl ")]
    assert all(words in repeat for words in ("--seed 3", "--bits 8 2", "--scheme default naive"))
    assert tuple(line for line in shown.splitlines() if line in demo.DISCLAIMER) == demo.DISCLAIMER
    rows = {(row["precision"], row["scheme"]): row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    eight, two, naive = rows["int8", "default"], rows["int2e8", "default"], rows["int2", "naive"]
    assert (eight["verdict"], two["verdict"], naive["verdict"]) == ("non-inferior", "non-inferior", "inferior")
    assert min(eight["agreement"], rows["int8", "naive"]["agreement"]) >= 0.97
    assert (tmp_path / "out" / "report.html").is_file()
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_rows_replace_no_model(models, capsys):
    before = (models / "policy.safetensors").read_bytes()
    said = refused(capsys, "eval", models / "policy.safetensors", "--json", models / "policy.safetensors")
    assert "would overwrite a file that is not JSON" in said
    assert (models / "policy.safetensors").read_bytes() == before


@pytest.mark.parametrize("words", [["ptq", "x", "-o", ""], ["eval", ""], ["ptq", "x", "--output="]])
def test_an_empty_word_is_no_folder(words, capsys):
    assert "unset shell variable" in refused(capsys, *words)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["> /dev/full", "--json /dev/full", "--json - > /dev/full"])
def test_a_full_device_costs_one_line(models, more):
    ended = subprocess.run(
        f"{sys.executable} -m quarl eval {models / 'policy.safetensors'} --episodes 1 {more}",
        shell=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") <= 12
    assert ended.stderr.splitlines()[-1].startswith("quarl: cannot write the output")


@pytest.mark.slow
def test_the_environment_is_made_as_the_user_says_and_saved_policies_remember_it(tmp_path, capsys):
    require.module("Box2D")
    policy = replace(dense([8, 2], head="clip"), head=ActionHead("clip", -np.ones(2, "f4"), np.ones(2, "f4")))
    artifact.write(policy, tmp_path / "lander.safetensors")
    lander = ["lander.safetensors", "--env", "LunarLander-v3", "--episodes", "3"]
    continuous = ["--env-kwargs", "continuous:True", "gravity:-5.0", "--max-episode-steps", "20"]
    assert main(["eval", *lander]) == 2
    assert "are not those of LunarLander-v3 (Discrete(4)); choose" in capsys.readouterr().err
    assert main(["ptq", *lander, *continuous, "--bits", "8", "--scheme", "per-channel", "--json", "rows.json"]) == 0
    said = capsys.readouterr()
    described = "LunarLander-v3, continuous=True, gravity=-5.0, episodes of at most 20 steps"
    assert f"quarl: environment: {described}\n" in said.err
    assert " --env-kwargs continuous:True gravity:-5.0 --max-episode-steps 20 " in said.out
    before = json.loads(Path("rows.json").read_text())["rows"]
    assert main(["eval", "quarl-ptq/int8.safetensors", "--episodes", "3", "--json", "again.json"]) == 0
    assert capsys.readouterr().err == ""
    (after,) = json.loads(Path("again.json").read_text())["rows"]
    assert (after["steps"], after["mean"]) == (60, before[1]["mean"])


@pytest.mark.slow
def test_episodes_are_played_until_a_verdict(agents, tmp_path):
    words = "--episodes auto --max-episodes 40 --margin 10 --bits 8 4 --edge-bits same -o out"
    command = [sys.executable, "-m", "quarl", "ptq", str(agents / "sb3" / "dqn" / "CartPole-v1_1"), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(Path("out/rows.json").read_text())["rows"]
    said = [(row["precision"], row["episodes"], row["max_episodes"], row["verdict"]) for row in rows[1:]]
    assert said == [("int8", 30, 40, "non-inferior"), ("int4", 30, 40, "inferior")]
    assert "episodes until a verdict, at most 40" in done.stdout
    assert "--episodes auto --max-episodes 40" in done.stdout.splitlines()[-1]
