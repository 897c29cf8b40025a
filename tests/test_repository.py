"""What the repository says about itself is true: commands, pins, contents of the package."""

from __future__ import annotations

import ast
import importlib.resources
import pkgutil
import re
import shlex
import subprocess
import tomllib

import pytest
import yaml

import quarl
import require
from documents import PAGES, ROOT, blocks
from quarl.cli import module_of, parse
from quarl.config import VERBS
from quarl.config.words import below

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def commands():
    """(file, command) of every complete `quarl ...` line in a fenced block."""
    for page in PAGES:
        for words in (words for block in blocks(page, generated=True) for words in block.commands()):
            if words.startswith("quarl ") and not re.search(r"[\[\]|…]|\.\.\.|--help|--version", words):
                yield pytest.param(words, id=f"{page.name}: {words}")


def named_modules():
    """Yield what the source names in strings and imports by name, as MODULE, MODULE.NAME or MODULE:NAME."""
    yield from (module_of(verb.verb) + ":run" for kind in VERBS for verb in below(kind))
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"^(quarl(?:\.\w+)+(?::\w+)?)\.?$", node.value)
                yield from map(".".join, re.findall(r"from (quarl[\w.]*) import (\w+);", node.value))


@pytest.mark.parametrize("name", sorted({*named_modules()} - {"quarl.contract", "quarl.lock"}))
def test_strings_that_name_modules_are_importable(name):
    try:
        pkgutil.resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name.startswith("quarl"):
            raise
        require.module(error.name)


@pytest.mark.parametrize("command", list(commands()))
def test_documented_commands_are_understood(command, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # --scheme imports a module of the page
    if "my_schemes" in command:
        texts = [block.text for block in blocks(ROOT / "docs/guide/ptq.md") if block.name == "my_schemes.py"]
        (tmp_path / "my_schemes.py").write_text("".join(texts))
    parse(shlex.split(command)[1:]).check()


@pytest.mark.slow
def test_documented_make_targets_exist():
    named = {found for page in PAGES for found in re.findall(r"\bmake ([a-z][a-z0-9-]*)`", page.read_text())}
    assert _steps("demo", "test", "check", *named)


def test_every_requirement_is_pinned_exactly_in_the_constraints_and_nowhere_else():
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    wanted = {name_of(requirement) for group in groups for requirement in group} - {"quarl"}
    assert wanted <= set(PINS)
    assert PINS["torch"] == "2.13.0"
    assert not [requirement for group in groups for requirement in group if "==" in requirement]


def test_the_citation_names_this_version_and_the_paper_with_its_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert (citation["version"], citation["license"]) == (quarl.__version__, PROJECT["project"]["license"])
    (paper,) = citation["references"]
    families = [author["family-names"] for author in paper["authors"]]
    assert families == ["Krishnan", "Lam", "Chitlangia", "Wan", "Barth-Maron", "Faust", "Reddi"]
    assert paper["url"] == PROJECT["project"]["urls"]["Paper"]


def test_the_changelog_has_this_version_within_forty_lines_a_version():
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert versions[0].startswith(quarl.__version__)
    assert max(len(version.strip().splitlines()) for version in versions) <= 41  # and its heading


@pytest.mark.slow
def test_an_sdist_has_every_tracked_file():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: it was unpacked")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    tops = {name.partition("/")[0] for name in tracked if name}
    manifest = (ROOT / "MANIFEST.in").read_text()
    included = set(" ".join(re.findall(r"^(?:include|graft) (.*)$", manifest, re.MULTILINE)).split())
    assert tops - included == {".gitignore", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "src"}


def test_classifiers_name_pythons_on_which_the_package_is_tried():
    named = re.findall(r"Python :: (\d\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    tried = re.search(r"^PYTHONS = \((.*)\)$", (ROOT / ".ci" / "package.py").read_text(), re.MULTILINE)
    assert "3.11" in named
    assert set(named) <= set(re.findall(r"[\d.]+", tried[1]))


def test_all_is_every_extra_but_those_for_development_for_services_elsewhere_and_for_robots():
    extras = PROJECT["project"]["optional-dependencies"]
    (together,) = extras["all"]
    others = {"all", "dev", "docs", "wandb", "cluster", "robotics", "panda"}
    assert set(re.findall(r"[\w-]+", together.partition("[")[2])) == set(extras) - others


def test_the_package_carries_its_template_and_its_types():
    package = importlib.resources.files("quarl")
    assert (package / "py.typed").is_file()
    assert (package / "report" / "templates" / "report.html.j2").is_file()
    assert (package / "report" / "templates" / "table.html.j2").is_file()
    assert (package / "algorithms" / "tuned.yml").is_file()


@pytest.mark.slow
def test_studies_commands_and_scripts_that_make_runs_exist():
    phony = re.search(r"^\.PHONY: (.*)$", _steps("--print-data-base", "check"), re.MULTILINE)
    benches = [target for target in phony[1].split() if target.startswith("bench-")]
    assert len(benches) > 20
    steps = _steps(*benches).splitlines()
    for file in re.findall(r"\b(?:benchmarks|studies)/\S+\.\w+", "\n".join(steps)):
        assert (ROOT / file).is_file(), f"make runs {file}, which is not there"
    for words in (shlex.split(step) for step in steps if re.match(r"\S*/quarl ", step)):
        parse(words[1:]).check()


def _steps(*targets):
    """What make would run for them."""
    return subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_continuous_integration_runs_the_documented_test_command():
    assert "make test" in (ROOT / "README.md").read_text()
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
