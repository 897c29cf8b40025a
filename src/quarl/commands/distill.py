"""`quarl distill`: one agent's policy in few bits, trained to imitate its own float version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

from quarl import energy, engines, formats
from quarl.calibration import Calibrated, quantize
from quarl.commands import model, terminal
from quarl.commands.model import CHECKPOINT
from quarl.config import DistillConfig
from quarl.distillation.rounds import Snapshot, best, distill, facts
from quarl.distillation.validation import Validation
from quarl.errors import NothingSavedError, QuarlError
from quarl.evaluation import Evaluation
from quarl.files import locked, staged
from quarl.judging import against, looks_of, until_judged
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.post_training.layer_bits import AssignmentRow, choose
from quarl.post_training.measure import Cell
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers import load
from quarl.report import assessment, page
from quarl.report.figures import learning, precision_colors
from quarl.rows import (
    VERDICTS,
    Column,
    Episodes,
    JudgedRow,
    Lengths,
    MaxEpisodes,
    Measured,
    Payload,
    Returns,
    Successes,
    Updates,
)
from quarl.specs import ComparisonSpec, PtqSpec
from quarl.stats import INFERIOR, UNDECIDED

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRow(JudgedRow):
    """One precision of one agent."""

    command = "distill"
    bits_mean: Annotated[float, Column("bits", "{:.2f}".format)]
    """Mean bits of a weight, over all layers."""
    bits_of_layers: dict[str, int]
    """Bits of the weights by layer."""
    measured: Measured
    mean_fp32: Annotated[float | None, Column("fp32", formats.number, optional=True)]
    """Mean return; null, like all that depends on returns, if observations are given in place of an environment."""
    mean_calibrated: Annotated[float | None, Column("calibrated", formats.number, optional=True)]
    """Mean return of the calibrated policy, from which distillation starts."""
    mean: Annotated[float | None, Column("distilled", formats.spread, of=("mean", "std"), optional=True)]
    std: float | None
    iqm: float | None
    """Interquartile mean, of the middle half of the returns."""
    ci_low: Annotated[float | None, Column("95 % interval", formats.interval, of=("ci_low", "ci_high"), optional=True)]
    """Ends of the 95 % bootstrap interval of the mean return; null for one episode."""
    ci_high: float | None
    error_pct: Annotated[float | None, Column("E %", formats.number, optional=True)]
    """Loss of return in percent of fp32's; null if fp32's interval contains 0."""
    margin_pct: Annotated[float, Column("margin", "{:g} %".format, caption="margin {}")]
    """Loss that counts as non-inferior, in percent of the return in fp32."""
    verdict: Annotated[str | None, Column("verdict", formats.verdict, of=VERDICTS, optional=True)]
    """non-inferior, inferior or undecided, by the paired 95 % interval of the mean difference to fp32; the worse of
    this and the same verdict on successes, if the environment reports them."""
    episodes: Episodes
    max_episodes: MaxEpisodes
    error_calibrated: Annotated[float | None, Column("calibrated errs %", formats.percent, optional=True)]
    """Error of actions on held-out observations; null if returns are measured. It is the share of actions that
    differ from fp32's; for continuous actions, the mean absolute difference as a share of the range."""
    error: Annotated[float | None, Column("distilled errs %", formats.percent, optional=True)]
    """The same error after distillation."""
    round: Annotated[int, Column("round", lambda number: str(number) if number else "calibrated")]
    """Round of the chosen snapshot; 0 is the calibrated policy."""
    updates: Updates
    states: Annotated[int, Column("states", "{:,}".format)]
    """Number of training states, including those of calibration."""
    distillation_s: Annotated[float, Column("s", "{:.0f}".format)]
    """Seconds of training and of the episodes that provided its states, without validation."""
    validation_mean: float | None
    """Mean return of the snapshot on the episodes that chose it."""
    validation_episodes: Annotated[int, Column("validation", "{:,}".format)]
    """Number of episodes played to choose the snapshot."""
    validation_s: Annotated[float, Column("its s", "{:.0f}".format)]
    """Seconds of validation."""
    payload: Payload
    bytes_packed: Annotated[int, Column("file", formats.size)]
    """Size of the saved policy's file, whose header is most of a small network's."""
    returns: Returns
    lengths: Lengths
    successes: Successes


def run(config: DistillConfig) -> None:
    """Distill every precision, write the folder, print the table."""
    _check_folder(config)
    model.refuse_results_of_another(config)
    policy, environment = model.at_home(model.read(config), config)
    load.refuse_quantized(policy, model.locate(config))
    given = model.observations(config.observations, policy)
    own_margin = replace(config, margin=config.loss_pct) if config.auto else config
    covered, ends = model.envelope(config, policy), looks_of(config)
    validation = Validation(policy, own_margin, given, environment, covered)
    if given is None and environment is not None:
        environment.make_for(policy).close()  # raises before the folder is made
    replaced: list[str] = []
    with (
        staged(config.output, partial(model.list_replaced, config, replaced)) as folder,
        locked(config.output),
        energy.meter(config) as meter,
    ):
        if given is not None:
            terminal.note(f"training uses only the states in {config.observations}, and no return is measured")
        looks, cells, tried, said = _distilled(config, validation)
        # play the chosen snapshots on fresh episodes
        chosen = [best(snapshots).policy for snapshots in looks.values()]
        for each in chosen:
            artifact.write(each, folder / f"{each.spec.precision}.safetensors")
        exact, played = None, list[Evaluation]()
        if cells:  # the search has already played the chosen assignment
            exact, played = cells[0].evaluation, [each for each in (cells[-1].evaluation,) if each]
        elif given is None:
            plays = [partial(validation.play, each) for each in (quantize(policy, EXACT), *chosen)]
            exact, *played = until_judged(plays, ends, config.margin, config.success_margin)
        # rows, curve and page
        title, command = policy.provenance.title(exact.env_id if exact else None), replace(config, resume=False)
        figures = _figures(looks, title) if played else []
        rows = [_row(each, exact, q, validation) for each, q in zip_longest(looks.values(), played)]
        said += map(_sentence, rows, looks.values())
        about = model.told(config, policy, exact, meter.cost)
        heading = "Returns on fresh episodes" if played else "Fidelity: errors of actions on held-out observations"
        document, shown = model.keep(folder, DistillRow, rows, heading, tried, **about)
        page.write(
            folder,
            figures,
            config.figure_format,
            title=f"{title}: distillation",
            facts={
                "model": str(document["model"]),
                "environment": str(document["env_id"]),
                "observations": about["statistics"],
            },
            sentences=said,
            tables=shown,
            command=command.command_line(),
        )
    for file in config.output.glob(f"{CHECKPOINT}*.safetensors"):
        file.unlink()
    terminal.show(DistillRow, document["rows"], title)
    terminal.say("", *said, str(about["statistics"]), "", f"report: {config.output / 'report.html'}", *replaced)
    terminal.finish(command, document)


def _distilled(
    config: DistillConfig, validation: Validation
) -> tuple[dict[QuantSpec, list[Snapshot]], list[Cell], list[AssignmentRow], list[str]]:
    """Distill into every precision, or with --auto search for the bits of each layer.

    Args:
        config: The verb's options.
        validation: The policy, and how its snapshots are validated.

    Returns:
        The snapshots by precision. A search adds its cells, the assignments that it tried, and sentences about its
        choice.
    """
    looks: dict[QuantSpec, list[Snapshot]] = {}
    most = config.bounds()[0] * config.updates
    with terminal.progress(None if config.auto else len(config.specs()) * most) as progress:

        def distilled(calibrated: Calibrated, spec: QuantSpec) -> QuantizedPolicy:
            snapshots = looks[spec] = []
            file = config.output / f"{CHECKPOINT}{_name(spec)}.safetensors"
            for snapshot in distill(calibrated, spec, validation, file=file, progress=progress):
                snapshots.append(snapshot)
                terminal.note(f"{_name(spec)}, {snapshot}")
            progress(spec.precision, most - snapshots[-1].updates)
            return best(snapshots).policy

        if not config.auto:
            calibrated = validation.calibrated()
            for spec in config.specs():
                distilled(calibrated, spec)
            return looks, [], [], []
        assert validation.environment is not None
        asked = PtqSpec(**{field.name: getattr(config, field.name) for field in fields(ComparisonSpec)})
        about: Any = {"distilled": distilled, "envelope": validation.envelope}
        cells, tried, said = choose(validation.policy, validation.environment, asked, progress, **about)
        if (spec := cells[-1].policy.spec) not in looks:  # it was good enough after calibration
            looks[spec] = [next(distill(cells[-1].calibrated, spec, validation))]
        return {spec: looks[spec]}, cells, tried, said


def _figures(looks: Mapping[QuantSpec, Sequence[Snapshot]], title: str) -> list[tuple[str, str, Figure]]:
    """Draw the return of the snapshots in validation."""
    colors = precision_colors(spec.precision for spec in looks)
    points = [
        {"label": spec.precision, "color": colors[spec.precision], "updates": look.updates, **asdict(look.summary)}
        for spec, snapshots in looks.items()
        for look in snapshots
    ]
    curve = learning(points, [], {"updates": "updates"}, f"{title}: return of the snapshots, in validation")
    return [("curve", "Mean return of each snapshot on validation's episodes, with its 95 % interval.", curve)]


def _check_folder(config: DistillConfig) -> None:
    """Raise QuarlError unless the folder's checkpoints agree with --resume."""
    there = sorted(path.name for path in config.output.glob(f"{CHECKPOINT}*.safetensors"))
    if there and not config.resume:
        raise QuarlError(f"{config.output} holds a run ({there[0]}): continue with --resume, or use another folder")
    if config.resume and not there:
        raise NothingSavedError(f"no checkpoint in {config.output}; start without --resume")


def _name(spec: QuantSpec) -> str:
    """Return the precision, followed by the bits of each layer if they were chosen by layer."""
    return "-".join([spec.precision, *(str(bits) for _, bits in spec.layer_bits)])


def _sentence(row: DistillRow, snapshots: Sequence[Snapshot]) -> str:
    """Return the result of a precision and, if it is not good enough, the next step."""
    if row.mean is None or row.mean_fp32 is None:
        return f"{row.precision}: fidelity, no return; play the policy before you use it."
    changed = f"{formats.number(row.mean_calibrated)} calibrated, {formats.number(row.mean)} distilled"
    came = f"{changed}, of {formats.number(row.mean_fp32)} in fp32"
    if not row.round:
        better = f"none of {formats.counted(snapshots[-1].updates, 'update')} did better in validation"
        came = f"calibration's codes are kept; {better if len(snapshots) > 1 else 'validation required no training'}"
    advice = {
        UNDECIDED: f" {assessment.takes_more(asdict(row), row.mean_fp32)}: raise --{'max-' * bool(row.max_episodes)}"
        "episodes, and --validation, which ends training.",
        INFERIOR: f" {row.precision} is inferior: raise --rounds or --updates, or use more bits.",
    }
    word = row.verdict if row.verdict == INFERIOR else assessment.of_return(asdict(row))
    return f"{row.precision}: {came}.{advice.get(word, '')} {assessment.too_few(asdict(row))}".rstrip()


def _row(
    snapshots: Sequence[Snapshot], exact: Evaluation | None, played: Evaluation | None, validation: Validation
) -> DistillRow:
    chosen, first, config = best(snapshots), snapshots[0], validation.recipe
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(DistillRow)) | facts(snapshots)
    row |= {"precision": chosen.policy.spec.precision, "bits_of_layers": chosen.policy.bits_of_layers}
    row |= {"bits_mean": chosen.policy.mean_bits, "payload": chosen.policy.payload}
    row |= {"bytes_packed": len(artifact.to_bytes(chosen.policy))}
    row |= {"measured": engines.load_fitting(chosen.policy).measured}
    if exact is None or played is None:
        row |= {"error_calibrated": first.error, "error": chosen.error, "episodes": 0, "margin_pct": config.margin}
        return DistillRow(**row)
    fp32 = exact.returns[: len(played.returns)]
    alike = {"episodes": len(fp32), "seed": exact.seed}
    calibrated = played if chosen is first else validation.play(first.policy, **alike)
    row |= against(played, exact, config, exact.seed)
    return DistillRow(**row | {"mean_fp32": float(fp32.mean()), "mean_calibrated": float(calibrated.returns.mean())})
