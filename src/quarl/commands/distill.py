"""`quarl distill`: one agent's policy in few bits, taught by its own float self."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from quarl import energy, formats
from quarl.calibration import Calibrated, quantize
from quarl.commands import model, terminal
from quarl.config import DistillConfig
from quarl.distillation.rounds import Recipe, Snapshot, best, distill, facts
from quarl.errors import QuarlError
from quarl.evaluation import Evaluation, evaluate, record
from quarl.experiments.rows import judged
from quarl.files import staged, write_bytes
from quarl.policy import artifact
from quarl.policy.graph import is_quantized
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers.normalizer import sentence
from quarl.report import page, schema, style, tables
from quarl.report.figures import learning
from quarl.rows import Column, Episodes, Error, Measured, Precision, Returns, Row, Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRow(Row):
    """One precision of one agent."""

    command = "distill"
    precision: Precision
    bits_mean: Annotated[float, Column("bits", "{:.2f}".format)]
    """Of a weight, over all layers."""
    bits_of_layers: dict[str, int]
    """By layer."""
    measured: Measured
    mean_fp32: Annotated[float, Column("fp32", formats.number)]
    mean_calibrated: Annotated[float, Column("calibrated", formats.number)]
    """Mean return of what distillation begins with."""
    mean: Annotated[float, Column("distilled", formats.spread, of=("mean", "std"))]
    std: float
    iqm: float
    """Interquartile mean: of the middle half of the returns."""
    ci_low: Annotated[float | None, Column("95 % interval", formats.interval, of=("ci_low", "ci_high"))]
    """Ends of the 95 % bootstrap interval of the mean return; null of one episode."""
    ci_high: float | None
    error_pct: Error
    margin_pct: Annotated[float, Column("margin", "{:g} %".format, caption="margin {}")]
    """Loss that counts as non-inferior, in percent of the return in fp32."""
    noninferior: bool
    verdict: Annotated[str, Column("verdict", formats.verdict, of=("verdict", "differs", "precision"))]
    """non-inferior, inferior or undecided, by the paired 95 % interval of the mean difference to fp32."""
    differs: bool
    """Whether that interval does not contain 0."""
    difference: float | None
    """Mean of the paired differences to fp32, a loss being negative, and the ends of its 95 % interval."""
    difference_low: float | None
    difference_high: float | None
    episodes: Episodes
    round: Annotated[int, Column("round", lambda number: str(number) if number else "calibrated")]
    """Whose snapshot was chosen; 0: what calibration made."""
    updates: Updates
    states: Annotated[int, Column("states", "{:,}".format)]
    """That were learned from, those of calibration included."""
    distillation_s: Annotated[float, Column("s", "{:.0f}".format)]
    """Seconds of training and of the episodes that gave its states, validation apart."""
    validation_mean: float
    """Mean return of the snapshot on the episodes that chose it."""
    validation_episodes: Annotated[int, Column("validation", "{:,}".format)]
    """That were played to choose the snapshot."""
    validation_s: Annotated[float, Column("its s", "{:.0f}".format)]
    """Seconds of validation."""
    bytes_packed: Annotated[int, Column("packed", formats.size)]
    """Weights at their bits, scales and biases: what the policy weighs."""
    returns: Returns


def run(config: DistillConfig) -> None:
    """Distils every precision, writes the folder, prints the table."""
    policy = model.at_home(model.read(config), config)
    if is_quantized(policy):
        raise QuarlError(f"{config.model[0]} is quantised already ({policy.spec.precision}); give the float policy")
    play = partial(evaluate, episodes=config.episodes, seed=config.seed, env_id=config.env)
    recipe = Recipe.of(config)
    rows: list[DistillRow] = []
    looks: list[tuple[QuantSpec, Snapshot]] = []
    with staged(config.output) as folder, energy.meter(config) as meter:
        calibrated = Calibrated(policy, record(policy, seed=config.seed, env_id=config.env))
        exact = play(quantize(policy, EXACT))
        for spec in config.specs():
            snapshots = []
            for snapshot in distill(calibrated, spec, recipe, seed=config.seed, env_id=config.env):
                snapshots.append(snapshot)
                terminal.note(f"{spec.precision}, {snapshot}")
            rows.append(_row(spec, snapshots, exact, play, config))
            looks += [(spec, snapshot) for snapshot in snapshots]
            artifact.write(best(snapshots).policy, folder / f"{spec.precision}.safetensors")
        document = schema.document(
            DistillRow,
            rows,
            model=str(model.locate(config)),
            algo=policy.provenance.algo,
            env_id=exact.env_id,
            seed=config.seed,
            energy=meter.cost,
            statistics=sentence(policy),
        )
        title = model.title(policy, exact.env_id)
        schema.write(document, folder / "rows.json")
        write_bytes(tables.to_csv(document["rows"]).encode(), folder / "rows.csv")
        points = [{"label": spec.precision, "updates": look.updates, **_ends(look)} for spec, look in looks]
        curve = learning(points, [], {"updates": "updates"}, f"{title}: return of the snapshots, in validation")
        style.save(curve, folder / "curve.png")
        text = page.render(
            title=f"{title}: distillation",
            facts={"model": str(document["model"]), "environment": exact.env_id, "observations": sentence(policy)},
            sentences=[_sentence(row) for row in rows],
            tables=[("Returns on fresh episodes", tables.cells(DistillRow, document["rows"]))],
            figures=[("Mean return of each snapshot on validation's episodes, with its 95 % interval.", curve)],
            command=config.command_line(),
        )
        write_bytes(text.encode(), folder / "report.html")
    terminal.show(DistillRow, document["rows"], title)
    terminal.say("", *map(_sentence, rows), sentence(policy), "", f"report: {config.output / 'report.html'}")
    terminal.finish(config, document)


def _ends(snapshot: Snapshot) -> dict[str, float | None]:
    summary = snapshot.summary
    return {"mean": summary.mean, "ci_low": summary.ci_low, "ci_high": summary.ci_high}


def _sentence(row: DistillRow) -> str:
    if not row.round:
        return (
            f"{row.precision}: calibration's codes are what stays; nothing that was trained did better in validation."
        )
    changed = f"{formats.number(row.mean_calibrated)} calibrated, {formats.number(row.mean)} distilled"
    return f"{row.precision}: {changed}, of {formats.number(row.mean_fp32)} in fp32."


def _row(
    spec: QuantSpec,
    snapshots: Sequence[Snapshot],
    exact: Evaluation,
    play: Callable[..., Evaluation],
    config: DistillConfig,
) -> DistillRow:
    chosen, first = best(snapshots), snapshots[0]
    played = play(chosen.policy)
    calibrated = played if chosen is first else play(first.policy)
    return DistillRow(
        precision=spec.precision,
        bits_mean=chosen.policy.mean_bits,
        bits_of_layers=chosen.policy.bits_of_layers,
        measured=played.measured,
        mean_fp32=float(exact.returns.mean()),
        mean_calibrated=float(calibrated.returns.mean()),
        **judged(played.returns, exact.returns, config.margin, config.seed),
        **facts(snapshots),
        bytes_packed=len(artifact.to_bytes(chosen.policy)),
        returns=played.returns.tolist(),
    )
