"""`quarl inspect`: what a precision does to the weights of each layer."""

from __future__ import annotations

from quarl import sweep
from quarl.commands import model, terminal
from quarl.config import InspectConfig
from quarl.inspection import Layer, inspect, weight_bias_line
from quarl.policy.artifact import write_bytes
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.ptq import quantize, rewritten
from quarl.quant.spec import FLOAT_BITS, SCHEMES, QuantSpec
from quarl.report import figures, schema, style
from quarl.report.staging import staged


def run(config: InspectConfig) -> None:
    """Prints one row a layer; writes the figure and output.txt."""
    path, policy = model.locate(config), model.read(config)
    layers = _layers(config, policy)
    title = f"{path.name}: weights at {layers[0].precision}"
    line = weight_bias_line(path.name, policy)
    with staged(config.output) as folder:
        style.save(figures.weight_distribution(layers, title), folder / "weights.png")
        style.save(figures.weight_distribution(layers, title), folder / "weights.pdf")
        write_bytes(f"{line}\n".encode(), folder / "output.txt")
    document = schema.document(
        "inspect",
        [layer.to_json() for layer in layers],
        model=str(path),
        algo=policy.provenance.algo,
        env_id=policy.provenance.env_id,
        seed=config.seed,
    )
    terminal.show("inspect", document["rows"], title)
    if _is_rewritten(layers[0]):
        terminal.say(
            "", f"Scheme {layers[0].scheme} rescales channels before it rounds: these are the weights it rounds."
        )
    terminal.say("", line, f"figure: {config.output / 'weights.png'}")
    terminal.finish(config, document)


def _layers(config: InspectConfig, policy: Policy) -> list[Layer]:
    if isinstance(policy, QuantizedPolicy):
        return inspect(policy, policy)
    spec = QuantSpec.parse(config.bits, scheme=config.scheme)
    if spec.float_type is not None or not spec.scheme.needs_observations:
        return inspect(policy, quantize(policy, spec))
    observations = sweep.record(policy, "calibration", sweep.Settings(seed=config.seed, env_id=config.env))
    return inspect(rewritten(policy, spec, observations), quantize(policy, spec, observations))


def _is_rewritten(layer: Layer) -> bool:
    scheme = SCHEMES[layer.scheme]
    return layer.precision not in FLOAT_BITS and (scheme.equalize is not None or scheme.center_scores)
