"""Error rates and episodes of `--episodes auto`, against 100 fixed episodes, on returns that were measured.

    python benchmarks/verdicts.py [--replications 10000]

Episodes are drawn with replacement from the paired returns of results/ptq: fp32 and int8 for the nulls, whose true loss
is the margin, all precisions for the numbers of episodes. A null is shifted (int8's differences, moved to the margin),
or falls: differences moved to no loss, but that in a share of the episodes a multiple of the mean return is lost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from quarl.judging import looks
from quarl.judging import sequential_verdict as judged
from quarl.rows import by
from results import RESULTS, Row, read, verdict, write

CAP, FIXED = 400, 100
NULLS = {"shifted": (5, 0, 0), "falls 2 %": (2, 0.02, 1), "falls 5 %": (5, 0.05, 1), "falls 10 %": (10, 0.1, 1)}
NULLS["deep falls"] = (5, 0.02, 2.5)
"""Cases by name: margin in percent, share of the episodes that fall, and the cost of a fall in mean returns."""
RESAMPLES = np.random.default_rng(1).multinomial(FIXED, np.full(FIXED, 1 / FIXED), size=2_000).T / FIXED
"""Resamples [FIXED, resamples] of `stats.verdict`'s bootstrap, drawn once for all replications."""


def compare(fp32: np.ndarray, q: np.ndarray, margin: float) -> Row:
    """Return shares of verdicts in percent, and episodes over replications [R, CAP], fixed and sequential."""
    limit = -margin / 100 * np.abs(fp32[:, :FIXED].mean(1))
    blocks = np.array_split(q[:, :FIXED] - fp32[:, :FIXED], max(len(q) // 500, 1))
    ends = np.concatenate([np.quantile(block @ RESAMPLES, [0.025, 0.975], axis=1).T for block in blocks])
    times = looks(CAP, margin)
    words, episodes = [], []
    for exact, lossy in zip(fp32, q, strict=True):
        for n in times:
            word = judged(exact[:n], lossy[:n], margin, times).verdict
            if word != "undecided":
                break
        words.append(word)
        episodes.append(n)
    row = {
        f"fixed_{word}": 100 * share.mean()
        for word, share in (("kept", ends.T[0] > limit), ("lost", ends.T[1] < limit))
    }
    row |= {"kept": 100 * words.count("non-inferior") / len(q), "lost": 100 * words.count("inferior") / len(q)}
    row |= {"median": float(np.median(episodes)), "mean": float(np.mean(episodes))}
    return {key: round(float(value), 2) for key, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rng, nulls, cases = np.random.default_rng(0), [], []
    measured = [row for row in read("ptq", "rows") if row["scheme"] == "default" and row["mode"] == "dynamic"]
    for agent, rows in by(measured, lambda row: row["name"]).items():
        returns = {row["precision"]: np.array(row["returns"]) for row in rows}
        fp32 = returns.pop("fp32")
        scale, loss = abs(fp32.mean()), returns["int8"] - fp32
        for name, (margin, share, depth) in NULLS.items():
            if share or loss.std() > 1e-3 * scale:  # all else is the margin itself in every episode
                picked = rng.integers(fp32.size, size=(options.replications, CAP))
                lost = depth * (rng.random(picked.shape) < share) if share else margin / 100
                q = fp32[picked] + loss[picked] - loss.mean() - lost * scale
                nulls.append({"null": name, "agent": agent, "margin_pct": margin, **compare(fp32[picked], q, margin)})
                print(nulls[-1], flush=True)
        for precision, each in returns.items():
            picked = rng.integers(fp32.size, size=(options.replications // 10, CAP))
            cases.append({"agent": agent, "precision": precision, **compare(fp32[picked], each[picked], 5)})
            cases[-1]["clear"] = max(cases[-1]["fixed_kept"], cases[-1]["fixed_lost"]) >= 95
    wrong = {}
    for name, rows in by(nulls, lambda row: row["null"]).items():
        wrong[name] = [float(np.mean([row[arm] for row in rows])) for arm in ("kept", "fixed_kept")]
    worst = max(row["kept"] for row in nulls if row["null"] == "shifted")
    clear = float(np.median([row["median"] for row in cases if row["clear"]]))
    bars = [verdict("shifted to the margin: wrong, %, mean of agents", wrong["shifted"][0], 3.5)]
    bars += [verdict("shifted to the margin: wrong, %, worst agent", worst, 3.5)]
    for name in list(NULLS)[1:4]:
        bars += [verdict(f"{name}: wrong, %, mean of agents", wrong[name][0], round(wrong[name][1] + 1, 2))]
    bars += [verdict("median of episodes where the verdict is clear", clear, FIXED / 2)]
    setup = [{"replications": options.replications, "cap": CAP, "fixed": FIXED}]
    print(
        write("verdicts", "make bench-verdicts", root=options.out, setup=setup, nulls=nulls, cases=cases, bars=bars),
        *bars,
    )


if __name__ == "__main__":
    main()
