"""`quarl inspect`: the effect of a precision on the weights of each layer, or of several models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quarl.calibration import Calibrated, quantize, round_layers
from quarl.commands import model, terminal
from quarl.config import InspectConfig
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import record
from quarl.files import staged, write_bytes
from quarl.inert.zip import Opened
from quarl.inspection import LayerRow, ModelRow, inspect, weight_bias_line, whole
from quarl.policy.graph import Policy, is_quantized
from quarl.policy.layers import LayerWeights, of_policy
from quarl.quant.spec import FLOAT_BITS, SCHEMES, QuantSpec
from quarl.readers import find, load, weights_only
from quarl.readers.normalizer import sentence
from quarl.readers.torch_file import is_script
from quarl.report import schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN = "per-channel"
"""The scheme used in place of those that need observations, if there are only weights."""
Layers = Sequence[LayerWeights]


@dataclass(frozen=True, eq=False, slots=True)
class _Model:
    """A file whose weights are inspected."""

    path: Path
    policy: Policy | None
    layers: tuple[LayerWeights, ...]
    note: str = ""
    """Reason that there is no policy in a file that could hold one."""


def run(config: InspectConfig) -> int:
    """Print a row for each layer, or for each of several models; write the figure and output.txt.

    Return the exit code.
    """
    files = [_read(config, words) for words in config.models()]
    return _compare(config, files) if len(files) > 1 else _one(config, files[0])


def _read(config: InspectConfig, words: Sequence[str]) -> _Model:
    file = Opened(path := find.named(words, config.folder))
    kind = weights_only.recognize(file)
    stated = config.stated()
    is_plain = not any(stated.values())
    if kind in ("safetensors", "torch") and is_plain:
        return _Model(path, None, weights_only.read_weights(file, kind))
    try:
        policy = load.read(
            path, words[0] if config.folder is not None else "", config.normalize, config.frame_stack, **stated
        )
    except QuarlError as error:
        # The weights of an ONNX file do not depend on its head, so they are shown without one as well.
        if kind == "onnx" and (is_plain or isinstance(error, UnsupportedError)):
            layers, shown = weights_only.read_weights(file, kind), "its constant matrices"
        elif isinstance(error, UnsupportedError) and path.is_file() and not is_script(file.names):
            layers, shown = weights_only.read_model(file), "all weights in the file"
        else:
            raise
        return _Model(path, None, layers, f"Not a policy that QuaRL can run ({error}): showing {shown}.")
    return _Model(path, policy, of_policy(policy))


def _one(config: InspectConfig, file: _Model) -> int:
    alone = _has_weights_alone(config, file)
    layers = inspect(*_sides(config, file, alone))
    title = f"{file.path.name}: weights at {layers[0].row.precision}"
    line = weight_bias_line(file.path.name, file.layers)

    def draw() -> Figure:
        from quarl.report.weight_figures import weight_distribution  # imported here: matplotlib belongs to an extra

        return weight_distribution(layers, title)

    figure = _write(config, draw, [line])
    about, said = schema.Told(model=str(file.path), seed=config.seed), list[str]()
    if file.policy:
        provenance, statistics = file.policy.provenance, sentence(file.policy)
        about |= {"algo": provenance.algo, "env_id": provenance.env_id, "statistics": statistics}
        said += ["", statistics]
    if alone:
        said += _reasons(config, [file])
    elif not is_quantized(file.policy) and _is_rewritten(layers[0].row):
        scheme = layers[0].row.scheme
        said += ["", f"Scheme {scheme} rescales channels before rounding: these are the rescaled weights."]
    said += ["", line, *figure]
    return terminal.tell(config, LayerRow, [layer.row for layer in layers], title, *said, **about)


def _sides(config: InspectConfig, file: _Model, alone: bool) -> tuple[Layers, Layers, QuantSpec]:
    """Return the float layers, the layers in the requested precision or a quantized policy's own, and that precision.

    `alone` uses the weights of the file unchanged, without observations for calibration.
    """
    policy, spec = file.policy, QuantSpec.parse(config.bits, scheme=config.scheme)
    if is_quantized(policy):
        return file.layers, file.layers, policy.spec
    if policy is None or alone:
        return file.layers, round_layers(file.layers, _plain(config)), _plain(config)
    if not spec.needs_observations:
        return file.layers, of_policy(quantize(policy, spec)), spec
    policy_at_home, environment = model.at_home(policy, config)
    calibrated = Calibrated(policy, record(policy_at_home, seed=config.seed, environment=environment))
    before, _ = calibrated.rewrite(spec)
    return of_policy(before), of_policy(calibrated.quantize(spec)), spec


def _has_weights_alone(config: InspectConfig, file: _Model) -> bool:
    """Return True if there are only weights.

    There is no policy, or a float one without an environment for the observations that the scheme needs.
    """
    policy = file.policy
    if policy is None:
        return True
    has_home = is_quantized(policy) or config.env or policy.provenance.env_id
    return not has_home and QuantSpec.parse(config.bits, scheme=config.scheme).needs_observations


def _compare(config: InspectConfig, files: Sequence[_Model]) -> int:
    """Print a row for all weights of each model, as they are in its file."""
    labels = _labels(config, files)
    compared = [whole(label, *_sides(config, file, alone=True)) for file, label in zip(files, labels, strict=True)]
    lines = [weight_bias_line(label, file.layers) for file, label in zip(files, labels, strict=True)]
    noise = f", noise at {_plain(config).precision}" if _are_rounded(files) else ""
    title = f"Weights of {len(files)} models{noise}"

    def draw() -> Figure:
        from quarl.report.weight_figures import weights_of_models

        return weights_of_models(compared, title)

    figure = _write(config, draw, lines)
    said = [f"{label}: {sentence(file.policy)}" for label, file in zip(labels, files, strict=True) if file.policy]
    said = [*_reasons(config, files), "", *said, *lines, *figure]
    return terminal.tell(config, ModelRow, compared, title, *said, seed=config.seed)


def _write(config: InspectConfig, draw: Callable[[], Figure], lines: Sequence[str]) -> list[str]:
    """Write the lines and, if it can be drawn, the figure; return the line that names it."""
    with staged(config.output) as folder:
        write_bytes("".join(f"{line}\n" for line in lines).encode(), folder / "output.txt")

        def figures() -> Path:
            from quarl.report import style

            drawn = draw()
            for suffix in ("png", "pdf"):
                style.save(drawn, folder / f"weights.{suffix}")
            return config.output / "weights.png"

        return terminal.reported(figures, "figure")


def _labels(config: InspectConfig, files: Sequence[_Model]) -> list[str]:
    """Return labels that distinguish the models: their file names, otherwise the words that name them."""
    names = [file.path.name for file in files]
    words = ["/".join(words) for words in config.models()]
    return names if len(set(names)) == len(names) and config.folder is None else words


def _plain(config: InspectConfig) -> QuantSpec:
    """Return the requested precision with one width, by a scheme that needs no observations.

    Weights alone do not tell which layers are the first and the last.
    """
    spec = QuantSpec.parse(config.bits, scheme=config.scheme, edges="same")
    return QuantSpec.parse(config.bits, scheme=PLAIN, edges="same") if spec.scheme.needs_observations else spec


def _reasons(config: InspectConfig, files: Sequence[_Model]) -> list[str]:
    """Return notes that the numbers need, one per line; none if they are as requested."""
    notes = [file.note for file in files if file.note]
    if _are_rounded(files) and _plain(config).scheme.name != config.scheme and _plain(config).float_type is None:
        notes.append(f"Scheme {config.scheme} needs observations, and weights alone give none: rounded with {PLAIN}.")
    return ["", *notes] if notes else []


def _are_rounded(files: Sequence[_Model]) -> bool:
    """Return True if the requested precision applies to a model; quantized models are shown as they are."""
    return any(not is_quantized(file.policy) for file in files)


def _is_rewritten(layer: LayerRow) -> bool:
    scheme = SCHEMES[layer.scheme]
    return layer.precision not in FLOAT_BITS and (scheme.equalize is not None or scheme.center_scores)
