"""`quarl actorq`: training with quantized actors, with a live view of its progress."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from quarl import energy, formats
from quarl.actorq import auto, throughput_plan
from quarl.actorq.environments import environment_of
from quarl.actorq.run_options import adopt
from quarl.actorq.supervisor import Supervisor, warn_about_cores
from quarl.commands import terminal
from quarl.config import ActorQConfig, DistillConfig
from quarl.config.base import check_tracking
from quarl.errors import is_quiet, printable
from quarl.report import schema
from quarl.rows import Row
from quarl.runs.folder import RunFolder
from quarl.runs.new_model import check_environment

PLAN_STAGES = 3
MINUTE_S = 60.0
"""Seconds between two lines of progress without a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorQRow(Row):
    """One run; the command describes it in sentences."""

    command = "actorq"
    algo: str
    env_id: str
    precision: str
    engine: str
    seed: int
    clock_s: float
    """Training clock in seconds, without evaluations."""
    wall_s: float
    timesteps: int
    updates: int
    samples_per_insert: float | None
    reached_s: float | None
    """Training clock in seconds at which the target was reached; null without a target, or if it was not reached."""
    final: dict[str, Any] | None
    """The last evaluation."""
    actor_deaths: int
    distilled: float | None = None
    """Mean return of the policy from --distill, on separate episodes; null without it."""


def run(config: ActorQConfig) -> int:
    """Train to the end, or only plan; return the exit code."""
    if config.plan:
        _check_environment(config)
        return _plan(config)
    ended, document, report = train(config, Console(stderr=True, quiet=is_quiet()))
    if ended.result.message:
        terminal.complain(ended.result.message)
    if ended.result.exit_code == 0 and document is not None:
        return terminal.finish(replace(ended.config, resume=False), document, report)
    return ended.result.exit_code


def train(config: ActorQConfig, console: Console) -> tuple[Supervisor, schema.Document | None, list[str]]:
    """Train to the end, and write and print the summary and the page of a run that has begun.

    Returns the supervisor with its result, the document of summary.json or None, and the printed line about the page.
    `console` receives notes, and the live view if it is a terminal.
    """
    _check_environment(config)
    check_tracking(config.track)
    notes: list[str] = []
    with energy.meter(config) as meter:
        supervisor = _train(config, notes, console)
    result, config = supervisor.result, supervisor.config
    if not result.row:
        return supervisor, None, []

    def page() -> Path:
        # imported here: matplotlib takes its time, and nothing waits for it now
        from quarl.commands.training_page import of_actorq

        return of_actorq(supervisor, [*said, *notes])

    if config.distill and result.exit_code == 0:
        result.row["distilled"] = _distilled(config)
    about = schema.Told(algo=config.algo, env_id=config.env, seed=config.seed, energy=meter.cost)
    document = schema.document(ActorQRow, [ActorQRow(**result.row)], **about)
    schema.write(document, config.output / "summary.json")
    said = [result.message] if result.message else [*_sentences(config, result.row)]
    said += [terminal.resumed(supervisor.began_at)] if supervisor.began_at else []
    terminal.say(*([] if result.message else said))
    report = terminal.reported(page) if RunFolder(config.output).metrics.is_file() else []
    terminal.say(*report)
    return supervisor, document, report


def _check_environment(config: ActorQConfig) -> None:
    if not config.resume:  # a resumed run has saved the options that are not given here
        check_environment(config.algo, environment_of(config), config.learners)


def _train(config: ActorQConfig, notes: list[str], console: Console) -> Supervisor:
    """Run the training with a live view and return its supervisor; `notes` receives the lines printed meanwhile."""

    def say(line: str) -> None:
        notes.append(line)
        tell(line)

    def tell(line: str) -> None:
        console.print(f"quarl: {printable(line)}", markup=False, highlight=False, soft_wrap=True)

    with (
        _machines(config, say) as (config, parts),
        contextlib.closing(Supervisor(config, say, tell=tell, **parts)) as supervisor,
        contextlib.closing(supervisor.run()) as rows,
        _view(console) as show,
    ):
        config = supervisor.config
        warn_about_cores(config)
        for row in rows:
            show(config, row, supervisor.evaluator.entries)
    return supervisor


@contextlib.contextmanager
def _machines(config: ActorQConfig, say: Callable[[str], None]) -> Iterator[tuple[ActorQConfig, dict[str, Any]]]:
    """Yield the options with all numbers chosen, and the Supervisor's arguments for the machines of its actors."""
    config, folder = auto.chosen(config, say), RunFolder(config.output)
    saved = folder.read_args() if config.resume and folder.options.is_file() else {}
    if config.cluster is None and saved.get("cluster") is None:
        yield config, {}
        return
    from quarl.cluster.remote_family import clustered  # imported here: it needs Ray, which few installations have

    with clustered(config, saved, say) as run:
        yield run


def _distilled(config: ActorQConfig) -> float:
    """Distill the learner's policy for the actors' precision with printed progress, and return its mean return."""
    from quarl.commands import distill  # imported here: matplotlib takes its time

    folder, model = config.output / "distilled", str(config.output / "policy-fp32.safetensors")
    shutil.rmtree(folder, ignore_errors=True)  # it may hold the result of an earlier policy
    about: Any = {"bits": (config.actor_precision,), "edge_bits": "same", "env": config.env, "seed": config.seed}
    distill.run(DistillConfig(model=(model,), output=folder, **about))
    return float(json.loads((folder / "rows.json").read_bytes())["rows"][0]["mean"])


def _plan(config: ActorQConfig) -> int:
    """Time the parts of the run for some seconds and print the predicted rates; only --json writes a file."""
    config = auto.chosen(adopt(config, terminal.note), terminal.note)
    arms = tuple(dict.fromkeys((*throughput_plan.ARMS, (config.actor_precision, "litert"))))
    with energy.meter(config) as meter, terminal.progress(PLAN_STAGES) as progress:
        rates = throughput_plan.measure(config, arms, say=lambda label: progress(label, 1))
    warn_about_cores(config)
    rows = throughput_plan.predict(rates, config)
    actors = f"{formats.counted(config.num_actors, 'actor')} of {formats.counted(config.num_envs, 'environment')}"
    ratio = f"{rates.samples_per_insert:g} samples per insert"
    title = f"{config.algo} {config.env}: {actors} at niceness {config.nice}, {ratio}"
    about = schema.Told(algo=config.algo, env_id=config.env, seed=config.seed, energy=meter.cost)
    terminal.tell(
        config, throughput_plan.PlanRow, rows, title, *throughput_plan.sentences(rows, rates, config), **about
    )
    return 0


@contextlib.contextmanager
def _view(console: Console) -> Iterator[Callable[[ActorQConfig, dict[str, Any], list[dict[str, Any]]], None]]:
    """Yield a function that shows a table in place on a terminal, and prints lines elsewhere."""
    if not console.is_terminal:
        yield Lines()
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield lambda *shown: live.update(_table(*shown))


class Lines:
    """Progress without a terminal: a line for each evaluation, and one a minute."""

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None
        self._told = 0

    def __call__(self, config: ActorQConfig, row: dict[str, Any], evaluations: list[dict[str, Any]]) -> None:
        """Print what is due.

        Args:
            config: Options of the run.
            row: Current row of metrics.
            evaluations: All evaluations of the run, of earlier starts too.
        """
        if self._before is None:
            self._before, self._told = row, len(evaluations) if config.resume else 0
        for entry in evaluations[self._told :]:
            returns = {"fp32": "return", config.actor_precision: "return_quantised"}
            played = ", ".join(
                f"{label} {formats.estimate(entry[name], entry[f'{name}_low'], entry[f'{name}_high'])}"
                for label, name in returns.items()
                if name in entry
            )
            what = f"last evaluation, {entry['episodes']} fresh episodes" if entry.get("last") else "evaluation"
            terminal.note(f"{what} at step {entry['timesteps']:,}: {played}")
        self._told = len(evaluations)
        if (span_s := row["wall_s"] - self._before["wall_s"]) >= MINUTE_S:
            made = {name: row[name] - self._before[name] for name in ("timesteps", "updates")}
            goals = ("timesteps", config.steps), ("updates", config.updates)
            left = [(goal - row[name]) / made[name] * span_s for name, goal in goals if goal and made[name] > 0]
            terminal.note(
                f"{row['timesteps']:,} of {config.steps:,} steps, {row['updates']:,} updates, "
                f"{_rate(made['timesteps'] / span_s)} steps/s, return {_rate(row['return_mean'])}, "
                f"{timedelta(seconds=round(min(left))) if left else 'unknown time'} left"
            )
            self._before = row


def _table(config: ActorQConfig, row: dict[str, Any], evaluations: list[dict[str, Any]]) -> Table:
    title = f"{config.algo} {config.env}: {config.actors} {config.actor_precision} actors"
    table = Table(title=title, show_header=False, expand=False)
    for _ in range(4):
        table.add_column(justify="right")
    mean = row["return_mean"]
    last = evaluations[-1] if evaluations else {}
    cells = (
        ("clock", f"{row['clock_s']:.0f} s"),
        ("environment steps", f"{row['timesteps']:,} of {config.steps:,}"),
        ("updates", f"{row['updates']:,}"),
        ("steps/s", _rate(row["timesteps_per_s"])),
        ("updates/s", _rate(row["updates_per_s"])),
        ("samples per insert", _rate(row["samples_per_insert"])),
        ("training return", "–" if mean is None else f"{mean:.1f}"),
        ("evaluated fp32", _rate(last.get("return"))),
        (f"evaluated {config.actor_precision}", _rate(last.get("return_quantised"))),
        ("version", f"{row['version']:,} (published {row['published_version']:,})"),
        ("age of weights", f"{_rate(row['staleness_p50'])} / {_rate(row['staleness_p99'])} updates (p50/p99)"),
        ("actors alive", f"{row['actors_alive']} of {config.actors}"),
    )
    for (left, a), (right, b) in zip(cells[::2], cells[1::2], strict=True):
        table.add_row(left, a, right, b)
    for number, machine in enumerate(row["machines"]):
        actors = f"{machine['actors']} actors" if machine["answers"] else "does not answer"
        weights = f"{machine['rows']:,} steps, weights after {_rate(machine['weights_ms_p50'])} ms"
        table.add_row(f"machine {number}", actors, "", weights)
    return table


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _sent(config: ActorQConfig) -> str:
    """Return a description of the policy that the actors run."""
    rounded = "" if config.comm_bits is None else f" sent in {config.comm_bits} bits"
    return f"{config.actor_precision} policy{rounded}"


def _sentences(config: ActorQConfig, summary: dict[str, Any]) -> Iterator[str]:
    minutes = summary["clock_s"] / 60
    yield (
        f"trained {config.algo} on {config.env} for {minutes:.1f} min: {summary['timesteps']:,} environment steps, "
        f"{summary['updates']:,} updates"
    )
    if final := summary["final"]:
        for name, label in (("return", "fp32 policy"), ("return_quantised", _sent(config))):
            if name in final:
                played = formats.estimate(final[name], final[f"{name}_low"], final[f"{name}_high"])
                yield f"return of the {label}: {played}, {formats.counted(final['episodes'], 'episode')}"
    if (distilled := summary.get("distilled")) is not None:
        mean = formats.number(distilled)
        yield f"return distilled for {config.actor_precision}: {mean}; {config.output / 'distilled'}"
    if not config.eval_episodes:
        yield "not evaluated: --eval-episodes is 0"
    yield f"model: {config.output / 'model.zip'}"
