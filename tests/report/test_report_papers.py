"""Tables as LaTeX, returns as a long CSV, and figures for print."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import require
from quarl.lab.commands.robust import draw
from quarl.post_training.measure import PtqRow
from quarl.report import page, ptq_figures, tables
from quarl.report.figures import precision_colors
from quarl.report.schema import document

HOSTILE = r"a_b & c%d #1 {x} \input{y} ~^ $z$ – −1 ± 2 × µ ≤ ≥ 30-day --figure-format [1, 2] <*> 中 é"


def cells(rows):
    return tables.cells(PtqRow, rows)


def test_latex_has_the_cells_of_the_terminal_and_the_command(rows):
    table = cells(rows)
    text = tables.to_latex(table, "dqn on CartPole-v1", "quarl ptq a_b --seed 0")
    assert r"\caption{dqn on CartPole-v1. " in text
    assert r"\texttt{quarl ptq a\_b -{}-seed 0}, QuaRL " in text
    body = text.partition("\\midrule\n")[2].partition("\n\\bottomrule")[0].splitlines()
    assert len(body) == len(rows)
    for line, row in zip(body, table.rows, strict=True):
        shown = line.removesuffix(r" \\").replace("{[}", "[").replace(r"\%", "%").replace(r"$\pm$", "±")
        assert shown.replace(r"\textendash{}", "–").replace("$-$", "−").replace(r"\_", "_").split(" & ") == list(row)
    assert f"{{{''.join('l' if column.left else 'r' for column in table.columns)}}}" in text


def test_latex_escapes_markup_and_names_characters_it_lacks(rows):
    text = tables.to_latex(cells([{**rows[2], "engine": HOSTILE}, rows[0]]), HOSTILE)
    assert r"a\_b \& c\%d \#1 \{x\} \textbackslash{}input\{y\}" in text
    assert r"30-day -{}-figure-format {[}1, 2] $<${*}$>$ {[}U+4E2D] é" in text
    assert "\\input" not in text


def test_a_wide_table_is_scaled_to_the_line_and_a_narrow_one_is_not(rows):
    table = cells(rows)
    text, narrow = tables.to_latex(table, ""), tables.to_latex(replace(table, columns=table.columns[:7]), "")
    assert "\\resizebox{\\linewidth}{!}{%\n\\begin{tabular}" in text
    assert "\\end{tabular}}\n" in text
    assert "resizebox" not in narrow
    assert "\\end{tabular}\n" in narrow


@pytest.mark.slow
def test_latex_compiles_with_booktabs(rows, tmp_path):
    require.program("pdflatex")
    style = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True)
    if style.returncode:
        pytest.skip("booktabs is missing: apt install texlive-latex-recommended")
    many = [("Returns", cells(rows)), (HOSTILE, cells([{**rows[2], "engine": HOSTILE}, rows[0]]))]
    tables.write_latex(tmp_path, "dqn", many, "quarl ptq a_b --seed 0")
    head = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\\input{tables}\\end{document}"
    (tmp_path / "paper.tex").write_text(head)
    asked = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ran = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert r"Overfull \hbox" not in ran.stdout
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")


def scores(folder, seeds=3, episodes=4):
    """The matrices [runs, tasks] of each precision from a returns.csv of two tasks, and those that it was made of."""
    rng, made, rows = np.random.default_rng(0), {}, []
    for precision in ("fp32", "int8"):
        played = made[precision] = rng.normal(size=(seeds, 2, episodes))
        rows += [
            {"env_id": f"Task-{task}", "precision": precision, "seed": seed, "returns": played[seed, task].tolist()}
            for seed in range(seeds)
            for task in range(2)
        ]
    rows.append({**rows[-1], "seed": 9, "returns": None})  # a cell that failed
    tables.write_returns({"seed": None, "algo": "dqn", "rows": rows}, folder)
    long = pd.read_csv(folder / "returns.csv")
    grouped = {
        precision: group.pivot_table(index="seed", columns="env_id", values="return").to_numpy()
        for precision, group in long.groupby("precision")
    }
    return long, grouped, {precision: played.mean(axis=2) for precision, played in made.items()}


def test_grouped_returns_are_the_score_matrices_of_rliable(tmp_path):
    long, grouped, made = scores(tmp_path)
    assert list(long.columns) == ["env_id", "algo", "precision", "seed", "episode", "return", "length", "success"]
    assert len(long) == 2 * 3 * 2 * 4
    assert grouped.keys() == made.keys()
    for precision, matrix in grouped.items():
        np.testing.assert_allclose(matrix, made[precision], rtol=1e-12)


def test_returns_have_lengths_and_successes_where_they_are_known(tmp_path):
    both = {"precision": "fp32", "returns": [1.0, 2.0], "lengths": [7, 8], "successes": [True, False]}
    rows = [both, {"precision": "int8", "returns": [3.0], "lengths": [9], "successes": None}]
    rows = [*rows, {"precision": "int4", "returns": [4.0]}]
    tables.write_returns({"algo": None, "rows": rows}, tmp_path)  # pandas groups drop lines without a value
    assert (tmp_path / "returns.csv").read_text().splitlines() == [
        "precision,episode,return,length,success",
        "fp32,0,1.0,7,True",
        "fp32,1,2.0,8,False",
        "int8,0,3.0,9,",
        "int4,0,4.0,,",
    ]


def test_rliable_reads_the_grouped_returns(tmp_path):
    library, metrics = require.module("rliable.library"), require.module("rliable.metrics")
    _, grouped, made = scores(tmp_path)
    points, intervals = library.get_interval_estimates(
        grouped, lambda matrix: np.array([metrics.aggregate_mean(matrix)]), reps=50
    )
    assert points["int8"][0] == pytest.approx(made["int8"].mean())
    low, high = intervals["int8"][:, 0]
    assert low <= points["int8"][0] <= high


def test_a_document_without_returns_has_no_file_of_returns(rows, tmp_path):
    tables.write_returns(document(PtqRow, [{**row, "returns": None, "lengths": None} for row in rows]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_page_writes_its_figures_in_each_format(rows, tmp_path):
    figure = ptq_figures.sweet_spot(rows, "title")
    about = {"title": "t", "facts": {}, "sentences": [], "tables": [("Returns", cells(rows))], "command": "quarl ptq"}
    page.write(tmp_path, [("spot", "caption", figure)], ["png", "pdf", "svg"], **about)
    begins = {"spot.png": b"\x89PNG", "spot.pdf": b"%PDF", "spot.svg": b"<?xml"}
    assert all((tmp_path / name).read_bytes().startswith(begin) for name, begin in begins.items())
    assert b"/TrueType" in (tmp_path / "spot.pdf").read_bytes() or b"/Type0" in (tmp_path / "spot.pdf").read_bytes()
    assert b"/Type3" not in (tmp_path / "spot.pdf").read_bytes()
    assert (tmp_path / "tables.tex").read_text().count("\\begin{tabular}") == 1


def test_a_figure_format_that_is_unknown_is_refused(capsys):
    from quarl.cli import main

    assert main(["ptq", "model.zip", "--figure-format", "gif"]) == 2
    assert "gif" in capsys.readouterr().err


@pytest.mark.parametrize("draw", [draw for draw, _ in ptq_figures.FIGURES.values()])
def test_legends_and_labels_are_outside_the_data(rows, draw):
    figure = draw(rows, "title")
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    figure.draw_without_rendering()
    (box,) = (legend.get_window_extent(renderer) for legend in figure.legends)
    assert not any(axes.get_legend() for axes in figure.axes)
    assert not any(box.overlaps(axes.get_tightbbox(renderer)) for axes in figure.axes)
    assert box.x1 <= figure.bbox.x1


def test_a_precision_has_one_color_in_all_figures(rows):
    colors = precision_colors(["fp32", "int8", "int4", "int2"])
    for names in (["int4e8", "int8"], ["int2", "int4"], ["w8a8"]):
        found = precision_colors(names)
        assert found == {name: colors[f"int{name.removeprefix('w').removeprefix('int')[0]}"] for name in names}
    assert len({*precision_colors(["int8", "w8a4", "mixed", "int4", "int4e8", "fp32", "fp16", "bf16"]).values()}) == 8


def test_dynamic_mode_is_dashed_in_the_color_of_its_precision():
    fields = dict.fromkeys(("mean", "ci_low", "ci_high"), 1.0) | {"disturbance": "noise", "measured": True}
    arms = (("fp32", ""), ("int8", "static"), ("int8", "dynamic"))
    rows = [{**fields, "level": level, "precision": p, "mode": mode} for p, mode in arms for level in (0.0, 1.0)]
    (axes,) = draw(rows, "t").axes
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert [*lines] == ["fp32", "int8 static", "int8 dynamic"]
    assert [line.get_linestyle() for line in lines.values()] == ["-", "-", "--"]
    assert lines["int8 static"].get_color() == lines["int8 dynamic"].get_color() != lines["fp32"].get_color()
