"""Columns of ActorQ's tables."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.report.columns import Column, digits_of, field_of, judged, number, number_of, times_of

ARM = Column(
    "actor",
    lambda row: row["precision"] if row["engine"] == "litert" else f"{row['engine']} {row['precision']}",
    left=True,
)
RATIO = Column("samples per insert", lambda row: f"{row['samples_per_insert']:g}", "{} samples per insert")

JOULES = (
    Column("joules", lambda row: "" if row["joules"] is None else f"{row['joules']:,.0f}", optional=True),
    Column("joules by", lambda row: row["joules_by"] or "", "joules by {}", left=True, optional=True),
)

ACTORQ: Mapping[str, tuple[Column, ...]] = {
    "actorq": (
        Column("algorithm", field_of("algo"), left=True),
        Column("environment", field_of("env_id"), left=True),
        ARM,
        Column("seed", field_of("seed"), "seed {}"),
        Column("seconds", digits_of("clock_s")),
        Column("steps", lambda row: f"{row['timesteps']:,}"),
        Column("updates", lambda row: f"{row['updates']:,}"),
        Column("samples per insert", digits_of("samples_per_insert")),
        Column("target after s", digits_of("reached_s")),
        Column("return", lambda row: number(row["final"].get("return") if row["final"] else None)),
        Column("quantised", lambda row: number(row["final"].get("return_quantised") if row["final"] else None)),
        Column("actor deaths", field_of("actor_deaths")),
    ),
    "actorq plan": (
        ARM,
        Column("environment µs", digits_of("env_us")),
        Column("inference µs", digits_of("inference_us")),
        Column("overhead µs", digits_of("overhead_us")),
        Column("steps/s an actor", lambda row: f"{row['steps_per_s']:,.0f}"),
        Column("learner ms", digits_of("learner_ms")),
        Column("updates/s", digits_of("predicted_updates_per_s")),
        Column("× torch fp32", times_of("predicted_speedup_vs_torch_fp32")),
        Column("× fp32", times_of("predicted_speedup_vs_litert_fp32")),
        Column("bottleneck", field_of("bottleneck"), left=True),
    ),
    "bench actorq throughput": (
        Column("policy", field_of("net_arch"), "policy {}", left=True),
        Column("actors", field_of("actors"), "actors: {}"),
        RATIO,
        ARM,
        Column("updates/s", digits_of("updates_per_s")),
        Column("steps/s", lambda row: f"{row['env_steps_per_s']:,.0f}"),
        Column("× torch fp32", times_of("speedup_vs_torch_fp32", "vs_torch_low", "vs_torch_high")),
        Column("predicted", times_of("predicted_speedup")),
        Column("× fp32", times_of("speedup_vs_litert_fp32", "vs_litert_low", "vs_litert_high")),
        Column("overhead µs", digits_of("overhead_us")),
        Column("updates a version", digits_of("updates_per_version")),
        Column("age p50/p99", lambda row: f"{digits_of('staleness_p50')(row)}/{digits_of('staleness_p99')(row)}"),
        *JOULES,
    ),
    "bench actorq time-to-reward": (
        Column("task", field_of("task"), left=True),
        ARM,
        RATIO,
        Column("seed", field_of("seed")),
        Column("target", number_of("target")),
        Column("seconds", lambda row: f"{'> ' if row['censored'] else ''}{row['seconds']:,.0f}"),
        Column("", lambda row: "derived" if row["derived"] else "", left=True),
        Column("steps", lambda row: f"{row['env_steps']:,}"),
        Column("updates", lambda row: f"{row['updates']:,}"),
        Column("final return", number_of("final_return")),
        Column("quantised", number_of("final_return_quantised")),
        *JOULES,
    ),
    "bench actorq speed-up": (
        Column("task", field_of("task"), left=True),
        ARM,
        Column("against", field_of("against"), "against {}", left=True),
        Column(
            "ratio", lambda row: "each arm's best" if row["best_ratio"] else "own", "{} samples per insert", left=True
        ),
        Column("seconds", digits_of("seconds")),
        Column("its seconds", digits_of("seconds_against")),
        Column("speed-up", lambda row: f"{'≥ ' if row['at_least'] else ''}{times_of('speedup', 'low', 'high')(row)}"),
        Column("", lambda row: "derived" if row["derived"] else "", left=True),
        Column("seeds", field_of("seeds")),
        Column("not reached", field_of("lost")),
        Column("loss of return %", times_of("final_return_pct", "final_return_low", "final_return_high")),
        Column("verdict", judged, left=True, optional=True),
    ),
    "bench actorq breakdown": (
        Column("policy", field_of("net_arch"), "policy {}", left=True),
        RATIO,
        Column("weights every", lambda row: f"{row['actor_update_interval']} steps"),
        ARM,
        Column("inference", digits_of("inference_ms")),
        Column("environment", digits_of("environment_ms")),
        Column("insert", digits_of("insert_ms")),
        Column("pull", digits_of("pull_ms")),
        Column("deserialise", digits_of("deserialize_ms")),
        Column("load", digits_of("load_ms")),
        Column("wait", digits_of("wait_ms")),
        Column("other", digits_of("other_ms")),
    ),
    "bench actorq staleness": (
        Column("task", field_of("task"), "{}", left=True),
        Column("policy", field_of("net_arch"), "policy {}", left=True),
        RATIO,
        ARM,
        Column("weights every", lambda row: f"{row['actor_update_interval']} steps"),
        Column("seed", field_of("seed"), "seed {}"),
        Column("age p50", digits_of("staleness_p50")),
        Column("p99", digits_of("staleness_p99")),
        Column("updates", lambda row: f"{row['updates']:,}"),
        Column("final return", number_of("final_return")),
        Column("quantised", number_of("final_return_quantised")),
    ),
}
"""By the `command` of the document."""
