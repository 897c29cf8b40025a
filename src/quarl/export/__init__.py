"""Policies as files for other runtimes and small boards, with the evidence that they act alike."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from quarl.arrays import Array
from quarl.calibration import quantize, regridded
from quarl.engines.int16x8 import TARGET
from quarl.envelope import check_covered, met_in
from quarl.envs.environment import Environment, home_of, in_environment
from quarl.errors import MissingEnvironmentError, QuarlError, UnsupportedError, note
from quarl.evaluation import sample, split_by_time
from quarl.export import contract, golden, targets, verification
from quarl.export.contract import CONTRACT, GOLDEN, POLICY, SUMS, sha256
from quarl.export.numbers import read_names
from quarl.export.readme import readme
from quarl.export.states import golden_observations
from quarl.export.targets import STATIC, TARGETS, file_of
from quarl.files import staged, write_bytes
from quarl.inert.zip import read_bytes
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.quant.spec import Mode, QuantSpec
from quarl.readers import load
from quarl.specs import PATH

__all__ = ["TARGETS", "export", "quantised", "read_names"]


def quantised(
    policy: Policy,
    target: str,
    precision: str | int | None = None,
    mode: Mode | None = None,
    *,
    symmetric_activations: bool = False,
    observations: Array | None = None,
    environment: Environment | None = None,
    seed: int = 0,
    envelope: str | Array = PATH,
) -> QuantizedPolicy:
    """Return the policy in the form that `export` takes: in a precision, or with its own codes and grids.

    A policy that is already quantized keeps its codes. In dynamic mode it gets grids if the target or `mode` needs
    them.

    Args:
        policy: The policy.
        target: Runtime or language, one of TARGETS.
        precision: Precision of a float policy; None is int8, or w8a16 for int16 activations. A quantized policy has its
            own.
        mode: dynamic or static; None is static, or a quantized policy's own if the target supports it.
        symmetric_activations: Give new grids zero point 0, and refuse a policy that has others.
        observations: Raw observations [N, *shape] in the order of time, of which the last tenth is held out and the
            others calibrate; None records them in the environment.
        environment: Environment to record in; None is the policy's own.
        seed: Seed of the recorded episodes.
        envelope: States that new grids cover, as in `quarl.envelope.met_in`.

    Raises:
        QuarlError: The policy has another precision, keeps its grids despite an envelope, or has zero points that
            `symmetric_activations` excludes, or there is nothing to calibrate on.
    """

    def met() -> Array:
        recorded = None if observations is None else sample(policy, split_by_time(observations)[0])
        home = environment if observations is not None else environment or home_of(policy, recordable=True)
        return met_in(envelope, policy, home, recorded=recorded, seed=seed)

    made = policy
    if not is_quantized(policy):
        about: Any = {"mode": mode or "static", "symmetric_activations": symmetric_activations}
        spec = QuantSpec.parse(precision or ("w8a16" if target == TARGET else "int8"), **about)
        if not isinstance(policy, QuantizedPolicy) or spec.float_type != "fp32":
            made = quantize(policy, spec, met() if spec.needs_observations else None)
    elif precision is not None and not policy.spec.is_called(precision):
        own = policy.spec.precision
        raise QuarlError(f"the policy is {own} already: export the float one to --precision {precision}")
    elif policy.spec.activation_bits is not None and policy.spec.mode == "dynamic":
        if mode == "static" or (mode is None and (target in STATIC or symmetric_activations)):
            made = regridded(policy, met(), symmetric_activations=symmetric_activations)
    elif mode == "dynamic" and policy.spec.mode == "static":
        raise QuarlError("the policy is static and keeps its grids; drop --mode dynamic")
    assert isinstance(made, QuantizedPolicy)
    check_covered(envelope, policy, made)
    if symmetric_activations and (made.spec.mode != "static" or any(grid.zero_point for grid in made.grids.values())):
        raise QuarlError(
            f"symmetric activations require static grids with zero points 0, and the policy is {made.spec.in_words}: "
            "quantize the float one with --mode static --symmetric-activations"
        )
    return made


def export(
    policy: QuantizedPolicy,
    target: str,
    directory: Path,
    *,
    observations: Array | None = None,
    source: Path | None = None,
    environment: Environment | None = None,
    seed: int = 0,
    name: str = "policy",
    package: str | None = None,
    agent: Policy | None = None,
    names: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a folder with the policy's file, its contract, golden vectors and usage; return the contract.

    The policy's codes and grids are exported unchanged; a dynamic policy gets grids if the target needs them. The
    runtimes of this machine are checked against the golden vectors at once.

    Args:
        policy: The policy.
        target: Runtime or language, one of TARGETS.
        directory: Folder of the export.
        observations: Raw observations [N, *shape]; None records them in the environment.
        source: File of the agent.
        environment: Environment to record in; None is the policy's own.
        seed: Seed of the recorded episodes.
        name: Prefix of symbols and files of "c".
        package: Project around "c" with a control loop: "cmake", "platformio" or "esp-idf"; None writes none.
        agent: The policy before quantization, to compare with off its path; None compares nothing.
        names: Names and units of numbers for the contract, as `read_names` returns them.

    Raises:
        QuarlError: There are neither observations nor an environment.
        UnsupportedError: The target does not support the policy.
    """
    if target not in TARGETS:
        raise QuarlError(f"unknown target {target!r}; choose one of {', '.join(TARGETS)}")
    file = file_of(target, name, package)
    if target in STATIC and policy.spec.mode != "static":
        if policy.spec.activation_bits is None:
            raise UnsupportedError(
                f"{target} is for integers, not {policy.spec.precision}: export it to tflite or onnx"
            )
        raise UnsupportedError(f"{target} needs static mode, this policy is dynamic: export it with --mode static")
    # Refuse a foreign folder before any work is done.
    check = partial(_refuse_files_of_others, directory, target, made_from := _source(policy, source))
    check([POLICY, GOLDEN, CONTRACT, "README.md", SUMS, file])
    env, environment = None, environment or in_environment(policy)[1]
    arithmetic = targets.reference_of(target)
    met, beyond = golden_observations(policy, agent, environment, observations, seed, arithmetic)
    vectors = golden.record(policy, met, arithmetic, beyond)
    # The contract names the numbers of an observation if the environment can be created.
    try:
        env = None if environment is None else environment.make_for(policy)
    except MissingEnvironmentError as error:
        note(f"{error}; without it the contract does not describe the numbers of an observation")
    shifted = sum(grid.zero_point != 0 for grid in policy.grids.values())
    if target == "onnx-qdq" and shifted:
        note(
            f"TensorRT, which was not run here, refuses the zero points of {shifted} of {len(policy.grids)} grids: "
            "--symmetric-activations makes them 0"
        )
    full = contract.contract(
        policy,
        target,
        arithmetic="qdq" if target == "onnx-qdq" else targets.reference_of(target),
        source=made_from,
        env=env,
        name=name,
        package=package,
        names=names,
    )
    if env is not None:
        env.close()
    # Fill a temporary folder; its checks run in the file's runtimes before anything is replaced.
    files = targets.write(policy, target, contract.inner(full), vectors, name, package)
    with staged(directory, lambda folder: check(os.listdir(folder))) as folder:
        for each, content in files.items():
            write_bytes(contract.sealed(content), folder / each)
        full["footprint"] = _footprint(policy, target, folder / file)
        full["verified"] = verification.verified(policy, target, vectors, folder / file)
        artifact.write(policy, folder / POLICY)
        write_bytes(vectors.to_bytes(), folder / GOLDEN)
        write_bytes((json.dumps(full, indent=1, default=artifact.plain) + "\n").encode(), folder / CONTRACT)
        write_bytes(readme(full, file).encode(), folder / "README.md")
        sums = [f"{sha256(path.read_bytes())}  {path.name}\n" for path in sorted(folder.iterdir())]
        write_bytes("".join(sums).encode(), folder / SUMS)
    return full


def _refuse_files_of_others(directory: Path, target: str, source: Mapping[str, str], names: Iterable[str]) -> None:
    """Refuse to replace any files but those of an earlier export of the same agent to the same target.

    Args:
        directory: Folder of the export; it may be missing.
        target: Runtime or language of the export.
        source: Name and sha256 of the agent's file.
        names: Files that are about to be written.

    Raises:
        QuarlError: One of the names is a file that `export` did not write, or that was edited since.
    """
    written = read_bytes(directory / SUMS).decode(errors="replace") if (directory / SUMS).is_file() else ""
    known = {line[66:]: line[:64] for line in written.splitlines()}
    for path in (directory / name for name in sorted(names) if name != SUMS or CONTRACT not in known):
        if os.path.lexists(path) and (not path.is_file() or sha256(read_bytes(path)) != known.get(path.name)):
            raise QuarlError(
                f"{path} was not written by quarl export, or was edited since: move it, or choose another -o"
            )
    if CONTRACT in known and (directory / CONTRACT).is_file():
        there = verification.read_document(directory / CONTRACT)
        if there.get("target") != target or source["sha256"] not in str(there.get("source")):
            raise QuarlError(
                f"{directory} holds an export of another policy, or for another target: choose another -o, or remove it"
            )


def _footprint(policy: QuantizedPolicy, target: str, file: Path) -> dict[str, Any]:
    """Return the requirements of a board and how they were found, or the reason for having none."""
    from quarl.engines.litert.flatbuffer import operators  # here: they double the imports of playing a file
    from quarl.export.footprint import footprint

    try:
        found = asdict(footprint(policy, target, file))
        return found if target == "c" else found | {"operators": operators(file.read_bytes())}
    except QuarlError as error:
        return {"flash": None, "ram": None, "how": str(error)}


def _source(policy: QuantizedPolicy, source: Path | None) -> dict[str, str]:
    """Return name and sha256 of the agent's file; without a file, the sha256 of the policy itself."""
    if source is None:
        return {"file": "", "sha256": sha256(artifact.to_bytes(policy))}
    return {"file": source.name, "sha256": sha256(load.contents(source))}
