"""Checks that a folder of `quarl export`, or a file of one, is unchanged and acts like the policy."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from quarl import __version__, formats, stats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.envs.environment import Environment, in_environment
from quarl.errors import MissingEnvironmentError, MissingPackageError, QuarlError, UnsupportedError
from quarl.evaluation import Evaluation, evaluate
from quarl.export import contract, golden, runtimes, targets
from quarl.export.contract import CONTRACT, GOLDEN, POLICY, SUMS, Exported
from quarl.export.damage import place
from quarl.export.equal import TIGHT, VerifyRow, held, held_in_order
from quarl.export.golden import Golden
from quarl.export.runtimes import Runtime
from quarl.export.states import disagreements, rollout
from quarl.inert.reading_budget import read_json, reading
from quarl.inert.zip import read_bytes
from quarl.judging import fidelity_on, successes_of
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.quant.spec import EXACT
from quarl.readers import load
from quarl.specs import ComparisonSpec
from quarl.stats import Verdict

CODE = {"policy.h", "policy_selftest.c", *targets.FILES.values()}
"""Files that only some targets write, besides those in all folders, with their usual names."""
SUFFIXES = (".c", ".h", ".cpp", ".txt", ".ini", ".tflite", ".onnx")
"""Suffixes of such files."""
AGAIN = "export the policy again, or give --edited to compile and run it as it is"
EMULATED = ("c-aarch64", "c-m4", "c-m0")
"""Runtimes of other processors: slow, and only checked on request."""


class Loaded:
    """A Runtime as an engine for one observation per call."""

    measured = True
    batch = 1

    def __init__(self, runtime: Runtime, file: Path) -> None:
        self.name, self.file_bytes, self.run = runtime.name, file.stat().st_size, runtime.run


def opened(file: Path) -> tuple[Exported, Loaded]:
    """Return the policy in an exported file's contract, and the file in the first of its runtimes.

    Raises QuarlError if the file is damaged.
    """
    inside = contract.read(_read(file), str(file))
    policy = contract.policy_of(inside, str(file))
    if file.suffix.lower() != ".c":  # C is parsed before it is compiled
        runtimes.sound(file)
    return policy, Loaded(runtimes.load(runtimes.for_file(file)[0], file, head=policy.head), file)


def verified(policy: QuantizedPolicy, target: str, vectors: Golden, file: Path) -> list[dict[str, Any]]:
    """Return the entries of contract.json about the installed runtimes: their results for the golden vectors.

    Args:
        policy: The exported policy.
        target: Name of the export target.
        vectors: Golden vectors: inputs with the expected outputs.
        file: The exported file.
    """
    said = []
    for name in runtimes.for_file(file):
        with contextlib.suppress(QuarlError):  # it is not installed, or refuses the file, as `verify` reports
            if name not in EMULATED:
                runtime = runtimes.coded(runtimes.load(name, file, head=policy.head), policy, target)
                row = held("golden vectors", policy, target, vectors, runtime)
                said.append({k: v for k, v in asdict(row).items() if k in VERIFIED} | {"vectors": row.count})
    return said


VERIFIED = ("runtime", "version", "arithmetic", "result", "detail")
"""Fields of a row in the contract's entry of a runtime, besides the number of vectors."""


def verify(
    path: Path,
    names: Sequence[str] = (),
    *,
    agent: Path | None = None,
    episodes: int = 20,
    env_id: str | None = None,
    margin_pct: float = 5.0,
    seed: int = 0,
    edited: bool = False,
    recorded: Callable[[Policy], Array] | None = None,
    envelope: bool = False,
) -> Iterator[VerifyRow | str]:
    """Check a folder that `quarl export` wrote, or one of its files.

    Code is compiled and run only if this version of QuaRL writes exactly the same, or with `edited`.

    Args:
        path: The folder or file.
        names: Runtimes; all that are installed if empty.
        agent: The file that was exported; None looks for its name in the folder and beside it.
        episodes: Episodes of each return; 0 plays none.
        env_id: Environment in place of the contract's.
        margin_pct: Acceptable loss of return, in percent of fp32's.
        seed: Seed of episodes and resampling.
        edited: Run the folder's file as it is, whatever its origin.
        recorded: Returns observations in place of those of fresh episodes, which need an environment.
        envelope: Compare a static policy with fp32 off the path, too.

    Yields:
        A row for each check, or the reason for leaving one out.

    Raises:
        QuarlError: If anything has changed, a named runtime is missing, or no runtime could run the file and it could
            not be compared with a new export.
    """
    folder = path if path.is_dir() else None
    policy, compared, target = None, dict[str, Golden](), ""
    ran = regenerated = False
    if folder is None:
        if edited or recorded is not None or envelope:
            what = "edited" if edited else "envelope" if envelope else "observations"
            raise QuarlError(f"--{what} requires the folder of {path.name}, with its contract and golden vectors")
        exported = contract.policy_of(contract.read(_read(path), str(path)), str(path))
        yield VerifyRow(check="contract", count=1)
        yield "left out, because they need the folder: sha256 of files, golden vectors, rollout, return against fp32"
    else:
        yield VerifyRow(check="sha256", count=_check_sums(folder, edited))
        full = read_document(folder / CONTRACT)
        policy, compared["golden vectors"] = _sources(folder, full, edited)
        path, target = folder / targets.file_of(full["target"], full["name"], full["package"]), full["target"]
        exported = contract.policy_of(full, str(folder / CONTRACT))
        yield VerifyRow(check="contract", count=1)
        vectors = compared["golden vectors"]
        about: Any = {"count": len(vectors.given), "detail": f"{vectors.off_path} of them are off the path"}
        yield VerifyRow(check="golden vectors", runtime="reference", result="equal", **about)
        regenerated = yield from _regenerated(path, full, policy, vectors, edited)
    home = in_environment(exported, env_id)[1]
    arithmetic = targets.reference_of(target)
    yield from _add_observations(compared, policy, recorded, home, seed, arithmetic)
    if envelope and policy is not None:
        exact, met = _source(path.parent, full, agent), list(compared.values())[-1]
        yield from disagreements(policy, exact, met, home, seed, arithmetic)
    plays = home if folder is not None and episodes else None
    baseline = None if plays is None else (yield from _baseline(path.parent, full, agent, episodes, seed, plays))
    # Compare and play the file in each runtime; only code that equals a new export is run in this process.
    for name in names or runtimes.for_file(path):
        if not names and name in EMULATED:
            yield f"left out: {name} (it emulates another processor: ask for it with --runtime {name})"
            continue
        try:
            loader: Any = runtimes.load if regenerated or path.suffix.lower() == ".c" else runtimes.apart
            runtime = loader(name, path, exported.spec, exported.head, policy if edited else None)
            runtime = runtimes.coded(runtime, policy, target)
        except QuarlError as error:
            if names or not (regenerated or isinstance(error, (MissingPackageError, UnsupportedError))):
                raise
            yield f"left out: {error}"
            continue
        if policy is not None:
            for check, each in compared.items():
                yield held(check, policy, target, each, runtime)
            if policy.state.size:
                yield held_in_order(policy, compared["golden vectors"], runtime)
        if home is not None and episodes:
            played = _play(exported, Loaded(runtime, path), episodes, seed, home)
            yield from _judged(runtime, played, baseline, margin_pct, seed)
        ran |= policy is not None or bool(home is not None and episodes)
    if not (ran or regenerated):
        raise QuarlError(
            f"{path} was neither run nor compared with a new export: verify its folder, install a runtime "
            f"({', '.join(runtimes.for_file(path))}), or name an environment with --env"
        )


def _baseline(
    folder: Path, full: dict[str, Any], agent: Path | None, episodes: int, seed: int, home: Environment
) -> Generator[str, None, Evaluation | None]:
    """Return the episodes of the exported agent in fp32; if it cannot play, yield the reason and return None."""
    try:
        return _play(_source(folder, full, agent), "litert", episodes, seed, home)
    except QuarlError as error:
        yield f"left out: return against fp32 ({error})"
        return None


def _add_observations(
    compared: dict[str, Golden],
    policy: QuantizedPolicy | None,
    recorded: Callable[[Policy], Array] | None,
    home: Environment | None,
    seed: int,
    arithmetic: str,
) -> Iterator[str]:
    """Add vectors of recorded observations, or of fresh ones of the policy's own episodes; yield a reason for none."""
    if policy is not None and recorded is not None:
        compared["recorded observations"] = golden.computed(policy, recorded(policy), arithmetic)
    elif home is None:
        yield "left out, because they need an environment: rollout and return; name one with --env"
    elif policy is not None:
        compared["rollout"] = golden.computed(policy, rollout(policy, home, seed + 1), arithmetic)


def _regenerated(
    path: Path, full: dict[str, Any], policy: QuantizedPolicy, vectors: Golden, edited: bool
) -> Generator[VerifyRow | str, None, bool]:
    """Yield the row of files that equal what `quarl export` writes; return whether they were compared."""
    if edited:
        yield f"left out: whether {path.name} is what quarl export writes (--edited runs it as it is)"
        return False
    try:
        yield VerifyRow(check="sources", count=_check_files(path.parent, full, policy, vectors), result="equal")
    except MissingPackageError as error:
        yield f"left out: whether {path.name} is what quarl export writes ({error})"
        return False
    return True


def _play(policy: QuantizedPolicy, engine: Any, episodes: int, seed: int, home: Environment) -> Evaluation:
    """Play episodes with the greedy actions."""
    return evaluate(policy, engine=engine, episodes=episodes, seed=seed, environment=home, stochastic=False)


def _judged(
    runtime: Runtime, played: Evaluation, baseline: Evaluation | None, margin_pct: float, seed: int
) -> Iterator[VerifyRow]:
    """Yield the rows of a runtime's returns and successes, compared with the same episodes in fp32 if they exist."""
    about: dict[str, Any] = {"runtime": runtime.name, "version": runtime.version, "count": len(played.returns)}
    if baseline is None:
        summary = stats.summary(played.returns, np.random.default_rng(seed))
        interval = formats.interval(summary.ci_low, summary.ci_high)
        yield VerifyRow(check="return", **about, result=f"{summary.mean:.1f}", detail=f"95 % interval {interval}")
        return
    for check, word, detail in _verdicts(baseline, played, "fp32", margin_pct, seed):
        yield VerifyRow(check=check, **about, result=word, detail=detail)


def _verdicts(
    before: Evaluation, after: Evaluation, name: str, margin_pct: float, seed: int
) -> Iterator[tuple[str, str, str]]:
    """Yield (what, verdict, detail) of the returns, and of the successes if the environment reports them."""
    verdict = stats.verdict(before.returns, after.returns, margin_pct, np.random.default_rng(seed))
    means = f"{after.returns.mean():.1f}, {name} {before.returns.mean():.1f}"
    few = f"; fewer than {stats.FEWEST_EPISODES} episodes" * (len(after.returns) < stats.FEWEST_EPISODES)
    yield "return", verdict.verdict, f"{means}; {_interval(verdict, f'{margin_pct:g} %')}{few}"
    if won := successes_of(before, after):
        success = stats.judge_success(*won, ComparisonSpec.success_margin)
        shares = f"{100 * won[1].mean():.0f} %, {name} {100 * won[0].mean():.0f} %"
        yield "success", success.verdict, f"{shares}; {_interval(success, f'{success.margin:g} points')}{few}"


def _interval(verdict: Verdict, margin: str) -> str:
    ends = formats.interval(verdict.difference.low, verdict.difference.high)
    return f"95 % interval of the difference {ends}, margin {margin}"


def judged(
    before: Policy,
    after: QuantizedPolicy,
    *,
    episodes: int,
    seed: int,
    environment: Environment | None,
    recorded: Array | None = None,
) -> Iterator[str]:
    """Yield the loss of return from `before` to `after` in a line, or the reason for not measuring it.

    Errors of actions on recorded observations are yielded, too.

    Args:
        before: The policy before.
        after: The quantized policy.
        episodes: Number of episodes.
        seed: Seed of the episodes.
        environment: Environment to play in; None plays nothing.
        recorded: Observations in the order of time; the last tenth is held out.
    """
    if recorded is not None:
        yield fidelity_on(before, after, recorded)[1]
    if environment is None:
        yield "its return is not measured: no environment is given"
        return
    exact = before if isinstance(before, QuantizedPolicy) else quantize(before, EXACT)
    try:
        old, new = (_play(each, "litert", episodes, seed, environment) for each in (exact, after))
    except MissingEnvironmentError as error:
        yield f"its return is not measured: {error}"
        return
    unknown = "; the file names no fp32 to compare both with" if is_quantized(before) else ""
    for what, word, detail in _verdicts(old, new, exact.spec.in_words, 5.0, seed):
        yield f"{what} {after.spec.in_words}, {episodes} episodes: {word} ({detail}){unknown}"


def _check_sums(folder: Path, edited: bool) -> int:
    """Return the number of files that match their sha256 in SHA256SUMS; raise QuarlError for one that does not.

    Edited code is not compared. Files that `quarl export` writes must be listed.
    """
    text = _read(folder / SUMS).decode("ascii", "replace")
    sums = {name: digest for digest, name in re.findall(r"([0-9a-f]{64})  ([\w.-]+)\n", text)}
    whole = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    if text != whole or not {CONTRACT, GOLDEN, POLICY} <= set(sums):
        raise QuarlError(f"{folder / SUMS} is damaged: it needs one line per file; export the policy again")
    if unlisted := [name for name in sorted(CODE) if name not in sums and os.path.lexists(folder / name)]:
        raise QuarlError(f"{folder / unlisted[0]} does not belong to this export: {SUMS} does not list it; remove it")
    for name, digest in sums.items():
        if not (edited and name.endswith(SUFFIXES)) and contract.sha256(_read(folder / name)) != digest:
            raise QuarlError(
                f"{folder / name} does not match its sha256 in {SUMS}: {place(folder, name)}; "
                + (AGAIN if name.endswith(SUFFIXES) else "export the policy again")
            )
    return len(sums)


def _check_files(folder: Path, full: dict[str, Any], policy: QuantizedPolicy, vectors: Golden) -> int:
    """Return the number of the target's files, which must equal, byte for byte, the files written from the policy."""
    with reading(folder):
        files = targets.write(policy, full["target"], contract.inner(full), vectors, full["name"], full["package"])
    for name, content in files.items():
        if contract.sealed(content) != _read(folder / name):
            raise QuarlError(f"{folder / name} is not what quarl export writes from {POLICY}: {AGAIN}")
    return len(files)


def _sources(folder: Path, full: dict[str, Any], edited: bool) -> tuple[QuantizedPolicy, Golden]:
    """Return the folder's policy and golden vectors; raise QuarlError if they differ from the contract or each other.

    A folder of another version of QuaRL can only be `edited`, because its files are unknown here.
    """
    version = full.get("quarl")
    if version != __version__ and not edited:
        raise QuarlError(
            f"{folder} was exported by quarl {str(version)[:40]}, not {__version__}: verify it with that version, "
            f"or {AGAIN}"
        )
    # The policy must match the digests of the contract, and the contract the policy.
    policy = artifact.read(folder / POLICY)
    if not isinstance(policy, QuantizedPolicy) or contract.digests(policy) != full.get("sha256"):
        raise QuarlError(f"weights or grids of {folder / POLICY} differ from {CONTRACT}: export the policy again")
    if (key := next(contract.differences(policy, full), None)) is not None:
        raise QuarlError(f"{folder / CONTRACT} differs from {POLICY} in {key!r}: export the policy again")
    vectors = golden.read(_read(folder / GOLDEN), str(folder / GOLDEN))
    if vectors.observations.shape[1:] != policy.observation_shape or vectors.observations.dtype.kind not in "fu":
        raise QuarlError(
            f"{folder / GOLDEN} has observations {vectors.observations.dtype} {list(vectors.observations.shape[1:])}, "
            f"{POLICY} reads {policy.observation_dtype} {list(policy.observation_shape)}; export the policy again"
        )
    # Recompute the vectors: the reference must reproduce each array.
    again = golden.computed(policy, vectors.observations, targets.reference_of(str(full.get("target"))))
    for name, codes in {**again.codes, "outputs": again.outputs, "given": again.given}.items():
        kept = vectors.codes.get(name) if name in again.codes else getattr(vectors, name)
        if kept is None or (kept.shape, kept.dtype) != (codes.shape, codes.dtype):
            raise QuarlError(f"{folder / GOLDEN} lacks {name!r} of {POLICY}: export the policy again")
        if (difference := golden.first_difference(codes, kept, 0 if name in again.codes else TIGHT)) is not None:
            raise QuarlError(f"{folder / GOLDEN}, {name!r}: {difference}; export the policy again")
    return policy, vectors


def _source(folder: Path, full: dict[str, Any], agent: Path | None) -> QuantizedPolicy:
    """Return the exported agent, in float32 if its file is; raise QuarlError if the file is missing or another one."""
    name = Path(str(full["source"]["file"])).name
    file = agent or next((f for f in (folder / name, folder.parent / name) if f.is_file()), None)
    if file is None:
        raise QuarlError(f"its agent {name!r} is not beside {folder}: name it with --agent")
    if contract.sha256(load.contents(file)) != full["source"]["sha256"]:
        raise QuarlError(f"{file} was not exported here, or has changed since")
    policy = load.read(file, **full["source"].get("choices", {}))
    return policy if isinstance(policy, QuantizedPolicy) else quantize(policy, EXACT)


def read_document(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise QuarlError if there is none."""
    return read_json(_read(file), str(file))


def exported_file(path: Path) -> Path | None:
    """Return the file of an export at `path`, which may also be its folder; None for anything else."""
    if not (path / CONTRACT).is_file():
        return path if is_exported(path) else None
    full = read_document(path / CONTRACT)
    target = full.get("target") if full.get("target") in targets.TARGETS else targets.TARGETS[0]
    return path / targets.file_of(str(target), str(full.get("name")), full.get("package"))


def is_exported(file: Path) -> bool:
    """Return whether the file is of an export; an .onnx file without a contract is an agent."""
    return bool(runtimes.for_file(file)) and (file.suffix != ".onnx" or contract.BEGIN.encode() in _read(file))


def _read(file: Path) -> bytes:
    with reading(file):
        return read_bytes(file)
