"""`quarl export`: a policy as a file for another runtime or a small board, with test vectors in its folder."""

from __future__ import annotations

from typing import Any

from quarl.commands import model, terminal
from quarl.config import ExportConfig
from quarl.export import export, quantised
from quarl.export.contract import memory
from quarl.export.equal import VerifyRow
from quarl.export.numbers import read_names
from quarl.export.targets import file_of
from quarl.export.verification import judged
from quarl.policy.graph import is_quantized
from quarl.readers import find
from quarl.readers.normalizer import outside, sentence


def run(config: ExportConfig) -> None:
    """Write the folder and print the results of each runtime on this machine."""
    path = config.output / file_of(config.to, config.name, config.package)
    policy, environment = model.at_home(model.read(config), config)
    given = model.observations(config.observations, policy)
    names = read_names(config.names, policy) if config.names else None
    about: Any = {"observations": given, "environment": environment, "seed": config.seed}
    symmetric = config.symmetric_activations
    covered: Any = {"symmetric_activations": symmetric, "envelope": model.envelope(config, policy)}
    exported = quantised(policy, config.to, config.precision, config.mode, **covered, **about)
    said: list[str] = []
    if is_quantized(policy) and exported is not policy:
        said.append("its activations use grids calibrated now: the file is static, while the policy is dynamic")
    if exported is not policy and (is_quantized(policy) or given is not None):
        said += judged(
            policy, exported, episodes=config.episodes, seed=config.seed, environment=environment, recorded=given
        )
    source = model.locate(config)
    file = find.in_folder(source) if source.is_dir() else source
    about |= {"name": config.name, "package": config.package, "agent": policy, "names": names}
    contract = export(exported, config.to, config.output, source=file, **about)
    rows = [VerifyRow(check="golden vectors", count=each.pop("vectors"), **each) for each in contract["verified"]]
    said += [
        contract["action"]["meaning"],
        sentence(exported),
        *filter(None, ["" if config.to == "c" else memory(contract), outside(exported.provenance.wrappers)]),
        f"file: {path}",
    ]
    title = f"{exported.provenance.title(config.env)}: {exported.spec.in_words} for {config.to}"
    terminal.tell(config, VerifyRow, rows, title, "", *said, **model.told(config, exported, None))
