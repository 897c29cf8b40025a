"""What the command line says of itself and on the way: --help, completion, -v, -q, the line before imports."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

import quarl
import require
from networks import cartpole, dense
from quarl import errors
from quarl.cli import main, parse
from quarl.config import VERBS, ActorQConfig, DistillConfig, PtqConfig
from quarl.config.base import check_device, hyperparameters, layer_widths, summary
from quarl.config.manual import Option, options
from quarl.config.words import SHELLS, below, completion, help_of
from quarl.envs import resolve
from quarl.errors import QuarlError
from quarl.fields import ORDER, WHAT
from quarl.policy import artifact
from quarl.quant.spec import QuantSpec
from refusals import refused

HEAVY = ("numpy", "scipy", "torch", "gymnasium", "matplotlib", "onnxruntime", "ai_edge_litert", "stable_baselines3")
CONFIGS = {verb.verb: verb for kind in VERBS for verb in below(kind)}
CHOICES = [
    (verb, option) for verb, config in CONFIGS.items() for option in options(config) if option.choices and option.names
]


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """policy.safetensors in the working directory; how much is said is as before when the test is over."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(errors.LOUDNESS, "")
    artifact.write(cartpole(), tmp_path / "policy.safetensors")
    return "policy.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("verb", CONFIGS)
def test_every_option_stands_in_a_group_and_what_verbs_share_in_the_same_one(verb):
    groups = {option.names[-1]: option.group for option in options(CONFIGS[verb]) if option.names}
    assert set(groups.values()) <= set(ORDER)
    assert {groups[name] for name in ("--json", "--verbose", "--quiet")} == {"output"}
    expected = {
        "--output": "output",
        "--env-kwargs": "environment",
        "--energy-watts": "energy",
        "--bits": "quantization",
        "--qat": "quantization",
        "--params": "training",
        "--device": "advanced",
    }
    assert {name: groups[name] for name in expected if name in groups} == {
        name: group for name, group in expected.items() if name in groups
    }
    shown = help_of(verb.split())
    titles = [line.removesuffix(":") for line in shown.splitlines() if re.fullmatch(r"[a-z]+:", line)]
    assert titles == [group for group in ORDER if group in {option.group for option in options(CONFIGS[verb])}]
    assert titles[0] in ("what", "output")


def test_an_option_is_shown_with_its_names_value_default_and_meaning():
    by_name = {option.names[-1]: option for option in options(ActorQConfig)}
    assert by_name["--n-timesteps"] == Option(
        names=("-n", "--n-timesteps"),
        value="N",
        choices=(),
        default="RL Zoo's, or 100000",
        meaning="Total environment steps of all actors; for a resumed run, counted from its beginning.",
        group=WHAT,
    )
    # declared anew, with other words, in the group of its first declaration
    assert (by_name["--eval-freq"].default, by_name["--eval-freq"].group) == ("10000", "training")
    assert (by_name["--learner-dtype"].choices, by_name["--learner-dtype"].value) == (
        ("auto", "fp32", "bf16", "fp16"),
        "{auto,fp32,bf16,fp16}",
    )
    assert by_name["--save-replay-buffer"].names == ("--no-save-replay-buffer", "--save-replay-buffer")
    assert (by_name["--plan"].value, by_name["--plan"].default) == ("", "")


@pytest.mark.slow
def test_examples_are_whole_commands_of_their_verb_and_end_its_help():
    for verb, config in CONFIGS.items():
        assert "examples" in vars(config), verb
        for example in config.examples:
            parsed = parse(shlex.split(example)[1:])
            parsed.check()
            assert type(parsed) is config
        behind = help_of(verb.split()).partition("\nfor example:\n")[2]
        assert behind == "\n".join(f"  {example}" for example in config.examples)


def test_help_shows_a_line_and_an_example_of_each_verb():
    shown = " ".join(help_of([]).split())
    for config in VERBS:
        (first, *_) = below(config)
        assert f"{config.verb} {summary(config)}. {first.examples[0]}" in shown
    shown = " ".join(help_of(["study"]).split())
    for verb in ("run", "status", "report"):
        assert f"study {verb} {summary(CONFIGS[f'study {verb}'])}. {CONFIGS[f'study {verb}'].examples[0]}" in shown


def test_help_is_as_wide_as_the_terminal(monkeypatch):
    for columns in (60, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = help_of(["actorq"]).partition("\nfor example:")[0].splitlines()
        assert columns - 12 < max(map(len, lines)) <= columns


def completed(lines, folder):
    """Return what bash offers for the last word of each line, by the script that it sources."""
    require.program("bash")
    (folder / "quarl.bash").write_text(completion("bash"))
    program = ["source ./quarl.bash", "complete -p quarl >&2"]
    for line in lines:
        words = line.split(" ")
        typed = f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}"
        program.append(f'{typed}; _tyro_quarl; echo "${{COMPREPLY[@]}}"')
    done = subprocess.run(["bash", "-c", "\n".join(program)], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == "complete -o bashdefault -o default -F _tyro_quarl quarl\n"
    return [set(line.split()) - {"-h", "--help"} for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_bash_completes_verbs_options_and_values(tmp_path):
    expected = {
        "quarl p": {"ptq", "play"},
        "quarl study r": {"run", "report"},
        "quarl ptq --mo": {"--mode"},
        "quarl ptq a.zip --bits 8 --mode ": {"dynamic", "static"},
        "quarl actorq --no-save": {"--no-save-replay-buffer"},
        "quarl ptq lo": set(),  # then bash offers files
        **{f"quarl {verb} -": {name for option in options(CONFIGS[verb]) for name in option.names} for verb in CONFIGS},
        **{f"quarl {verb} {option.names[-1]} ": {*option.choices} for verb, option in CHOICES[::6]},
    }
    assert dict(zip(expected, completed(expected, tmp_path), strict=True)) == expected


@pytest.mark.parametrize("shell", ["fish", "zsh"])
def test_other_shells_take_the_script(shell, tmp_path):
    require.program(shell)
    (tmp_path / "script").write_text(completion(shell))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_printed(shell, capsys):
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{completion(shell)}\n"
    assert "--actor-precision" in printed


def test_quiet_leaves_results_on_stdout_and_nothing_on_stderr(policy, capsys):
    words = ["eval", policy, "--episodes", "2", "--max-episode-steps", "20"]
    assert main(words) == 0
    usual = capsys.readouterr()
    assert usual.err == "quarl: environment: CartPole-v1, episodes of at most 20 steps\n"
    assert main([*words, "-q", "--json", "rows.json"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    shown, of_file = usual.out.partition("repeat:")[0], "rows: rows.json"
    assert re.findall(r"[a-z]{3,}", f"{shown} {of_file}") == re.findall(r"[a-z]{3,}", quiet.out)
    assert "repeat:" not in quiet.out


def test_quiet_is_not_about_errors(policy, capsys):
    assert "did you mean 'CartPole-v1'" in refused(capsys, "eval", policy, "--env", "CartPol-v1", "-q")


def test_verbose_says_what_is_loaded_read_and_played(policy, capsys):
    assert main(["eval", policy, "--episodes", "2", "--seed", "5", "--verbose"]) == 0
    said = capsys.readouterr()
    loaded, read, played = said.err.splitlines()
    seconds = r"\d+\.\d+ s"
    assert re.fullmatch(
        rf"quarl: quarl \S+, Python 3\.\S+, loaded quarl\.commands\.eval in {seconds}: "
        r"quarl eval policy\.safetensors --seed 5 --episodes 2",
        loaded,
    )
    assert re.fullmatch(
        rf"quarl: read policy\.safetensors in {seconds}: dqn, 96 weights, no VecNormalize .* are not normalized",
        read,
    )
    assert re.fullmatch(
        rf"quarl: played 2 episodes of CartPole-v1 in \d+ steps and {seconds}: fp32 measured on litert, seeds of "
        "evaluation 5",
        played,
    )
    # it is no part of what repeats
    assert "repeat: quarl eval policy.safetensors --seed 5 --episodes 2\n" in said.out


def test_verbose_and_quiet_exclude_each_other_and_last_for_one_command(policy, capsys):
    assert "--verbose and --quiet are mutually exclusive" in refused(capsys, "eval", policy, "-v", "-q")
    assert main(["eval", policy, "--episodes", "1", "-v"]) == 0
    capsys.readouterr()
    assert main(["eval", policy, "--episodes", "1"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_processes_of_a_run_say_as_much_as_it_does(policy, capfd):
    """What it is told travels in the environment of processes."""
    said = "import quarl.errors as e; e.note('note'); e.detail('detail'); e.complain('error')"
    for loudness, lines in (("", ["note", "error"]), ("quiet", ["error"]), ("verbose", ["note", "detail", "error"])):
        environment = os.environ | {errors.LOUDNESS: loudness}
        subprocess.run([sys.executable, "-c", said], env=environment, check=True)
        assert capfd.readouterr().err.splitlines() == [f"quarl: {line}" for line in lines]


def test_a_run_of_a_verb_remembers_neither_verbose_nor_quiet(policy, capsys, tmp_path):
    words = ["train", "--algo", "a2c", "-n", "64", "--eval-episodes", "0", "-f", "logs"]
    assert main([*words, "-q"]) == 0
    args = (tmp_path / "logs/a2c/CartPole-v1_1/CartPole-v1/args.yml").read_text()
    assert "quiet" not in args
    assert "verbose" not in args
    assert main([*words[:-4], "--resume", "-n", "128", "-v", "-f", "logs"]) == 0


def test_a_terminal_hears_what_will_be_done_before_anything_is_loaded(policy, monkeypatch, capsys):
    said = []

    def load(name):
        said.append((name, capsys.readouterr().err))
        raise errors.QuarlError("as far as this")

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["ptq", policy, "--bits", "8"]) == 2
    announced = "ptq policy.safetensors --seed 0 --bits 8 --episodes 100 --output quarl-ptq"
    assert said == [("quarl.commands.ptq", f"quarl: {announced}: {summary(CONFIGS['ptq'])} ...\n")]
    assert main(["ptq", policy, "--bits", "8", "--quiet"]) == 2
    assert said[-1] == ("quarl.commands.ptq", "quarl: as far as this\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["missing.zip"], ["missing.zip", "--env", "CartPole-v1"]])
@pytest.mark.parametrize("verb", ["ptq", "eval", "inspect"])
def test_help_and_the_refusal_of_no_model_load_nothing_heavy(verb, words, tmp_path):
    code = (
        "import sys\n"
        "from quarl.cli import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as ended: code = ended.code\n"
        f"print(sorted(set(sys.modules) & set({HEAVY!r})))\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, verb, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    *shown, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    if words == ["--help"]:
        assert (done.returncode, done.stderr) == (0, "")
        assert "--scheme" in done.stdout or verb == "eval"
    else:
        assert (done.returncode, done.stderr, shown) == (2, "quarl: no file missing.zip; check the path\n", [])


def test_a_model_may_lack_its_ending_and_several_are_looked_for(policy, capsys, tmp_path):
    (tmp_path / "agent.zip").write_bytes(b"PK")
    assert main(["eval", "agent"]) == 2
    assert "no file" not in capsys.readouterr().err
    assert refused(capsys, "inspect", policy, "other.onnx") == "quarl: no file other.onnx; check the path"


DIGITS = ("１２", "１", "٣", "1２")
NUMERIC = [
    (verb, option.names[-1])
    for verb, config in CONFIGS.items()
    for option in options(config)
    if option.names
    and {int, float} & {*get_args(hint := get_type_hints(config)[option.names[-1][2:].replace("-", "_")]), hint}
]


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "name"), NUMERIC)
def test_a_number_in_the_digits_of_another_script_is_refused(verb, name):
    for digits in DIGITS:
        with pytest.raises(QuarlError, match=digits):
            parse([*verb.split(), *["latency"] * (verb == "bench"), name, digits])


@pytest.mark.parametrize("digits", DIGITS)
def test_such_digits_are_refused_within_words_too(digits):
    for words in (f"w{digits}", f"int{digits}", f"int4e{digits}", digits):
        with pytest.raises(QuarlError, match="precision"):
            QuantSpec.parse(words)
    for call in (
        lambda: QuantSpec.parse("4", edges=digits),
        lambda: resolve(f"CartPole-v{digits}"),
        lambda: check_device(f"cuda:{digits}"),
        lambda: layer_widths(f"256,{digits}", "--net-arch"),
        lambda: hyperparameters((f"n_steps:{digits}",)),
        lambda: DistillConfig(model=("m",), budget=f"{digits}m").check(),
        lambda: PtqConfig(model=("m",), auto=True, max_loss=digits).check(),
    ):
        with pytest.raises(QuarlError, match=digits):
            call()


@pytest.mark.parametrize("word", ["x", "x%", "nan", "2 %", "-1", "1e400", "%"])
def test_a_max_loss_that_is_not_a_number_is_named(word):
    with pytest.raises(QuarlError, match=re.escape(f"--max-loss is {word!r}; use a percentage between 0 and 100")):
        PtqConfig(model=("m",), auto=True, max_loss=word).check()
    with pytest.raises(QuarlError, match=r"max_loss is 'x'; use a percentage"):
        quarl.ptq(quarl.Agent(dense([4, 16, 2])), auto=True, max_loss="x")
