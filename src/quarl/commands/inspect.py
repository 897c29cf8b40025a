"""`quarl inspect`: what a precision does to the weights of each layer, or of several models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from quarl.commands import model, terminal
from quarl.config import InspectConfig
from quarl.errors import UnsupportedError
from quarl.evaluate import record
from quarl.files import staged, write_bytes
from quarl.inspection import LayerRow, ModelRow, inspect, weight_bias_line, whole
from quarl.policy.graph import Policy, is_quantized
from quarl.policy.layers import LayerWeights, of_policy
from quarl.ptq import Calibrated, quantize, round_layers
from quarl.quant.spec import FLOAT_BITS, SCHEMES, QuantSpec
from quarl.readers import find, load, weights_only
from quarl.readers.normalizer import sentence
from quarl.report import schema, style, weight_figures

PLAIN = "per-channel"
"""The scheme that stands in for those that need observations, where there are weights alone."""
Layers = Sequence[LayerWeights]


@dataclass(frozen=True, eq=False, slots=True)
class _Model:
    """A file whose weights are looked at."""

    path: Path
    policy: Policy | None
    layers: tuple[LayerWeights, ...]
    note: str = ""
    """Why there is no policy, where one might be expected."""


def run(config: InspectConfig) -> None:
    """Prints one row a layer, or a model where there are several; writes the figure and output.txt."""
    found = [_read(config, words) for words in config.models()]
    if len(found) > 1:
        _compare(config, found)
    else:
        _one(config, found[0])


def _read(config: InspectConfig, words: Sequence[str]) -> _Model:
    path = find.named(words, config.folder)
    kind = weights_only.recognise(path)
    if kind:
        return _Model(path, None, weights_only.read(path, kind))
    try:
        policy = load.read(path, words[0] if config.folder is not None else "", config.normalize)
    except UnsupportedError as error:
        if not path.is_file():
            raise
        return _Model(
            path,
            None,
            weights_only.read_model(path),
            f"Not a policy that QuaRL runs ({error}): all weights in the file.",
        )
    return _Model(path, policy, of_policy(policy))


def _one(config: InspectConfig, found: _Model) -> None:
    alone = _has_weights_alone(config, found)
    layers = inspect(*_sides(config, found, alone))
    title = f"{found.path.name}: weights at {layers[0].row.precision}"
    line = weight_bias_line(found.path.name, found.layers)
    _write(config, weight_figures.weight_distribution(layers, title), [line])
    about, said = schema.Told(model=str(found.path), seed=config.seed), list[str]()
    if found.policy:
        provenance, statistics = found.policy.provenance, sentence(found.policy)
        about |= {"algo": provenance.algo, "env_id": provenance.env_id, "statistics": statistics}
        said += ["", statistics]
    if alone:
        said += _reasons(config, [found])
    elif not is_quantized(found.policy) and _is_rewritten(layers[0].row):
        scheme = layers[0].row.scheme
        said += ["", f"Scheme {scheme} rescales channels before it rounds: these are the weights it rounds."]
    said += ["", line, f"figure: {config.output / 'weights.png'}"]
    terminal.tell(config, LayerRow, [layer.row for layer in layers], title, *said, **about)


def _sides(config: InspectConfig, found: _Model, alone: bool) -> tuple[Layers, Layers, QuantSpec]:
    """The float layers, the same ones in the precision that was asked for, or in a quantised policy's own, and that.

    alone: the weights as they lie in the file, which give no observations to calibrate with.
    """
    policy, spec = found.policy, QuantSpec.parse(config.bits, scheme=config.scheme)
    if is_quantized(policy):
        return found.layers, found.layers, policy.spec
    if policy is None or alone:
        return found.layers, round_layers(found.layers, _plain(config)), _plain(config)
    if not spec.needs_observations:
        return found.layers, of_policy(quantize(policy, spec)), spec
    calibrated = Calibrated(policy, record(model.at_home(policy, config), seed=config.seed, env_id=config.env))
    before, _ = calibrated.rewrite(spec)
    return of_policy(before), of_policy(calibrated.quantize(spec)), spec


def _has_weights_alone(config: InspectConfig, found: _Model) -> bool:
    """Whether there is no policy, or a float one with nowhere to make the observations that the scheme needs."""
    policy = found.policy
    if policy is None:
        return True
    has_home = is_quantized(policy) or config.env or policy.provenance.env_id
    return not has_home and QuantSpec.parse(config.bits, scheme=config.scheme).needs_observations


def _compare(config: InspectConfig, found: Sequence[_Model]) -> None:
    """All weights of each model together, as they lie in its file."""
    labels = _labels(config, found)
    compared = [whole(label, *_sides(config, one, alone=True)) for one, label in zip(found, labels, strict=True)]
    lines = [weight_bias_line(label, one.layers) for one, label in zip(found, labels, strict=True)]
    noise = f", noise at {_plain(config).precision}" if _are_rounded(found) else ""
    title = f"Weights of {len(found)} models{noise}"
    _write(config, weight_figures.weights_of_models(compared, title), lines)
    said = [f"{label}: {sentence(one.policy)}" for label, one in zip(labels, found, strict=True) if one.policy]
    said = [*_reasons(config, found), "", *said, *lines, f"figure: {config.output / 'weights.png'}"]
    terminal.tell(config, ModelRow, compared, title, *said, seed=config.seed)


def _write(config: InspectConfig, drawn: Figure, lines: Sequence[str]) -> None:
    with staged(config.output) as folder:
        for suffix in ("png", "pdf"):
            style.save(drawn, folder / f"weights.{suffix}")
        write_bytes("".join(f"{line}\n" for line in lines).encode(), folder / "output.txt")


def _labels(config: InspectConfig, found: Sequence[_Model]) -> list[str]:
    """What tells the models apart: their file names, or else the words that name them."""
    names = [one.path.name for one in found]
    words = ["/".join(words) for words in config.models()]
    return names if len(set(names)) == len(names) and config.folder is None else words


def _plain(config: InspectConfig) -> QuantSpec:
    """The precision that was asked for, by a scheme that needs no observations."""
    spec = QuantSpec.parse(config.bits, scheme=config.scheme)
    return QuantSpec.parse(config.bits, scheme=PLAIN) if spec.scheme.needs_observations else spec


def _reasons(config: InspectConfig, found: Sequence[_Model]) -> list[str]:
    """What a reader has to know about the numbers, each a line; nothing where they are as asked."""
    notes = [one.note for one in found if one.note]
    if _are_rounded(found) and _plain(config).scheme.name != config.scheme and _plain(config).float_type is None:
        notes.append(f"Scheme {config.scheme} needs observations and weights alone give none: rounded by {PLAIN}.")
    return ["", *notes] if notes else []


def _are_rounded(found: Sequence[_Model]) -> bool:
    """Whether the precision that was asked for says anything of some model: quantised ones are shown as they are."""
    return any(not is_quantized(one.policy) for one in found)


def _is_rewritten(layer: LayerRow) -> bool:
    scheme = SCHEMES[layer.scheme]
    return layer.precision not in FLOAT_BITS and (scheme.equalize is not None or scheme.center_scores)
