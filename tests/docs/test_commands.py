"""Every command and every Python block of README and docs runs, in the order of its page: `make docs-test`.

A page has an empty folder of its own, in which each command is a process, as a reader would start it. It has to end
with 0, and to write what it says. `tables` cuts the long ones; what cannot run is skipped with its reason.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from tables import (
    ADDED,
    CUTS,
    CUTS_IN_TEXT,
    CUTS_OF_GIVEN,
    CUTS_OF_RESUMED,
    GOALS,
    MADE,
    NOT_RUN,
    PLACED,
    SPELLINGS,
    WRITES,
)

import require
from documents import OUTPUTS, PAGES, PYTHON, ROOT, SHELLS, SHOWN, Block, blocks, links, relative, target, written
from quarl.cli import parse

pytestmark = pytest.mark.slow

AGENTS = require.FOLDERS["agents"]
TIMEOUT_S = 300
MAX_LINES = 15
"""Of the block that reaches a goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command, a program in Python or a file of a page."""

    block: Block
    command: str = ""
    program: str = ""
    goal: str = ""
    """The file that is there afterwards."""
    alone: bool = False
    """Nothing is put into the folder beforehand."""


def steps(page: Path) -> list[Step]:
    """What the page does, in order; on a page of GOALS, the first block that writes something stands on its own."""
    done: list[Step] = []
    for block in blocks(page):
        if block.language in PYTHON:
            unnamed = [index for index, step in enumerate(done) if step.program and not step.block.name]
            if unnamed and not block.name and not re.match(r"(\s*#.*\n|\s*\n)*(import|from) ", block.text):
                done[unnamed[-1]] = replace(done[unnamed[-1]], program=done[unnamed[-1]].program + block.text)
            else:
                done.append(Step(block=block, program=block.text))
        elif block.language in (*SHELLS, *OUTPUTS):
            done += [Step(block=block, command=command) for command in block.commands()]
        elif block.name:
            done.append(Step(block=block))
    if goal := GOALS.get(relative(page)):
        block = next(step.block for step in done if "--plan" not in step.command.split())
        own = [index for index, step in enumerate(done) if step.block == block]
        for index in own:
            done[index] = replace(done[index], alone=True, goal=goal if index == own[-1] else "")
    return done


def label(step: Step) -> str:
    what = step.command or step.block.name or step.block.language
    return f"{relative(step.block.page)}:{step.block.line}: {what}"


STEPS = [pytest.param(step, id=label(step)) for page in PAGES for step in steps(page)]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """The folder of a page, empty at first."""
    folders: dict[Path, Path] = {}

    def folder(page: Path) -> Path:
        if page not in folders:
            folders[page] = tmp_path_factory.mktemp("page")
        return folders[page]

    return folder


@pytest.fixture(scope="session")
def agents(tmp_path_factory):
    """Trained agents in the zoo's layout below sb3: those beside the checkout, or one that is trained for a moment."""
    if AGENTS.is_dir():
        return AGENTS
    folder = tmp_path_factory.mktemp("agents")
    words = "quarl train --algo dqn --env CartPole-v1 -n 2000 --eval-episodes 1 -f sb3"
    run(words.split(), folder)
    return folder


@pytest.mark.parametrize("step", STEPS)
def test_what_a_page_shows_runs(step, folder_of, agents):
    folder = folder_of(step.block.page)
    if not step.alone:
        place(step, folder, agents)
    if step.command:
        command(step, folder)
    else:
        name = step.block.name or "program.py"
        (folder / name).write_text(cut_text(step.program or step.block.text))
        if step.program:
            run([sys.executable, name], folder)
            for saved in re.findall(r"\.save\(\"([^\"]+)\"", step.program):
                assert list(folder.glob(f"{saved}*")), f"{saved} was not written"
    if step.goal:
        assert (folder / step.goal).is_file()


def place(step: Step, folder: Path, agents: Path) -> None:
    """Puts there what the step takes for the reader's."""
    text = step.command or step.program or step.block.text
    for pattern, (name, words) in MADE.items():
        if re.search(rf"(?<![\w./-])({pattern})(?![\w.])", text) and not (folder / name).exists():
            run(words, folder)
    for pattern, (name, source) in PLACED.items():
        wanted = re.search(rf"(?<![\w./-])({pattern})(?![\w.])", text)
        if wanted and not (folder / name).exists():
            if not (agents / source).exists():
                require.missing("agents", f"{source} is not among them")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (agents / source).is_dir() else shutil.copyfile)(agents / source, folder / name)


def command(step: Step, folder: Path) -> None:
    """Runs the step's command as far as the tables allow, and looks for its files and for the table that is shown."""
    for beginning, reason in NOT_RUN.items():
        if re.match(beginning, step.command):
            pytest.skip(f"{step.command!r} {reason}")
    words = shlex.split(step.command)
    if words[0] != "quarl":
        run([sys.executable if words[0].startswith("python") else words[0], *words[1:]], folder)
        return
    if words[1] == "budget":
        require.runtime("c-m4")  # otherwise flash and RAM are unknown, which is no success
    printed = run(cut(words), folder)
    config = parse(words[1:])
    only_looks = getattr(config, "plan", False) or getattr(config, "dry_run", False)
    names = () if only_looks else WRITES.get(config.verb, ())
    if getattr(config, "observations", None):  # returns would be drawn
        names = [name for name in names if not name.endswith(".png")]
    files = [output_of(config) / name for name in names]
    files += [path for path in (config.json, getattr(config, "record", None)) if path and path != Path("-")]
    assert [str(path) for path in files if not (folder / path).is_file()] == []
    if len(step.block.commands()) == 1:
        assert headings(step.block.text) <= headings(printed)


def output_of(config) -> Path:
    return getattr(config, "output", None) or config.folder


def headings(text: str) -> set[str]:
    """Columns of the tables in a terminal's output: what stands above a rule."""
    lines = text.splitlines()
    ruled = [above for above, rule in pairwise(lines) if re.fullmatch(r"\s*─[─\s]+", rule)]
    return {heading for line in ruled for heading in re.split(r"\s{2,}", line.strip())}


def cut(words: list[str]) -> list[str]:
    """The command with no number above the tables' bounds."""
    verb = next((verb for verb in CUTS if " ".join(words[1:]).startswith(f"{verb} ")), "")
    words = [SPELLINGS.get(word, word) for word in words]
    resumed = CUTS_OF_RESUMED if "--resume" in words else {}
    for option, bound in {**CUTS_OF_GIVEN, **CUTS.get(verb, {}), **resumed}.items():
        if option in words:
            value = words.index(option) + 1
            words[value] = words[value] if words[value] == "auto" else str(min(int(words[value]), bound))
        elif option in CUTS.get(verb, {}) and "--observations" not in words:  # nothing is played
            words += [option, str(bound)]
    added = ADDED.get(verb, [])
    return words if resumed or not added or added[0] in words else [*words, *added]


def cut_text(text: str) -> str:
    """Python or a study with no number above the table's bounds."""
    for pattern, bound in CUTS_IN_TEXT.items():
        text = re.sub(pattern, lambda match, bound=bound: str(min(int(match[0]), bound)), text)
    return text


def run(words: list[str], folder: Path) -> str:
    """What the process prints; a failure shows its last lines."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, (
        f"{shlex.join(words)} ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_blocks_are_in_languages_of_which_it_is_clear_whether_they_run(page):
    languages = {block.language for block in blocks(page) if not block.language.startswith("{")}
    assert languages <= {*SHELLS, *OUTPUTS, *PYTHON, *SHOWN}


@pytest.mark.parametrize("page", GOALS)
def test_a_goal_is_two_links_from_readme_and_fifteen_lines(page):
    near = {aim[0] for link in links(ROOT / "README.md") if (aim := target(ROOT / "README.md", link))}
    far = {aim[0] for other in near if other in PAGES for link in links(other) if (aim := target(other, link))}
    assert ROOT / page in near | far
    (block,) = [step.block for step in steps(ROOT / page) if step.goal]
    assert len(block.text.splitlines()) <= MAX_LINES


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_files_that_a_page_names_in_folders_of_its_commands_are_there(page, folder_of):
    """`out/report.html` in its text, where a command of the page made `out`."""
    folder = folder_of(page)
    made = [path.name for path in folder.iterdir() if path.is_dir() and path.name != "rl-trained-agents"]
    names = set(re.findall(r"(?<!`)`([\w.-]+/[\w./-]*)`(?!`)", written(page)))
    named = [name for name in names if name.partition("/")[0] in made and not re.search(r"\b[A-Z]{2,}\b", name)]
    assert [name for name in named if not (folder / name).exists()] == []
