"""ONNX policies: partial evaluation, outputs, states and heads, against ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import quarl
import require
from onnx_models import model, nodes, put, random
from quarl.cli import main
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError
from quarl.export import contract
from quarl.export.equal import VerifyRow
from quarl.export.verification import verify
from quarl.policy.operators import Normalize
from quarl.readers import load
from refusals import refused

SAMPLES = {
    "unitree-g1-velocity.onnx": "",
    "mjlab-g1-velocity/policy.onnx": "",
    "playground-go1.onnx": "",
    "mlagents-walker-ripple.onnx": "",
    "godot-flyby.onnx": "raw",
    "godot-player.onnx": "argmax",
}
"""Their heads; "" leaves it to the file."""


def outputs(path: Path, observations: np.ndarray, name: str) -> np.ndarray:
    """ONNX Runtime's outputs without noise: random numbers are 0."""
    made = onnx.load(path)
    for each in made.graph.node:
        if each.op_type == "RandomNormalLike":
            each.CopyFrom(helper.make_node("Sub", [each.input[0]] * 2, each.output))
    session = require.module("onnxruntime").InferenceSession(made.SerializeToString())
    first, *others = (each.name for each in session.get_inputs())
    dummies = dict.fromkeys(others, np.zeros(1, np.float32))
    return np.concatenate([session.run([name], {first: row[None], **dummies})[0] for row in observations])


def actions(policy, observations: np.ndarray) -> np.ndarray:
    return policy.head(as_float(policy, observations)[policy.output])


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_acts_as_in_onnx_runtime(name: str):
    path = require.folder("agents-wild") / "onnx" / name
    policy = load.read(path, head="raw" if SAMPLES[name] else "")
    observations = 2 * random(1000, *policy.observation_shape)
    names = [each.name for each in onnx.load(path, load_external_data=False).graph.output]
    want = outputs(path, observations, next(n for n in ("continuous_actions", "actions", "output") if n in names))
    assert np.abs(actions(policy, observations) - want).max() <= 1e-5 * np.ptp(want)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_sample_becomes_verified_c(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    require.program("gcc")
    path = require.folder("agents-wild") / "onnx" / name
    head = ["--head", SAMPLES[name]] if SAMPLES[name] else []
    np.save(tmp_path / "seen.npy", random(300, *load.read(path, head=SAMPLES[name]).observation_shape))
    seen, folder = str(tmp_path / "seen.npy"), str(tmp_path / "c")
    assert main(["export", str(path), *head, "--to", "c", "--observations", seen, "-o", folder]) == 0
    assert main(["verify", folder]) == 0
    assert "equal" in capsys.readouterr().out


def test_statistics_become_one_normalizer_with_a_mean_in_two_parts(tmp_path: Path):
    arrays = {"mean": np.float32([[1e4, -3, 0, 5]]), "scale": np.float32([[0.5, 2, 1, 4]]), "w": random(4, 3)}
    path = put(tmp_path, model("Sub obs mean > a; Div a scale > b; MatMul b w > actions", arrays))
    first, *_ = load.read(path).ops
    assert isinstance(first, Normalize)
    np.testing.assert_allclose(first.mean, arrays["mean"][0], rtol=1e-12)
    np.testing.assert_array_equal(first.inverse_std, 1 / arrays["scale"][0])


CONSTANTS = {
    **{"g": np.float32([1, 2, 3, 4]), "o": random(4), "m": random(4), "s": np.float32([1, 2, 0.5, 3])},
    **{"one": [1], "two": [2], "three": [3], "order": [3, 0, 1], "rest": [-1, 1], "image": [1, 1, 2, 2]},
    **{"square": random(4, 4), "k": random(3, 1, 3, 3), "kb": random(3), "wide": random(12, 2)},
    **{"row": [1, 1, 4], "line": random(2, 1, 3)},
}
GRAPHS = {
    "silu": "Sigmoid h > a; Mul a h > actions",
    "elu": "Elu h > actions | alpha=0.5",
    "leaky": "LeakyRelu h > actions | alpha=0.2",
    "softplus": "Softplus h > actions",
    "affine": "Mul h g > a; Add m a > b; Sub m b > actions",
    "layer-norm": "LayerNormalization h g m > actions",
    "batch-norm": "BatchNormalization h g o m s > actions",
    "slices": "Slice h one three one > a; Concat a a > b | axis=1; Gather h order > c | axis=1;"
    "Concat b c > actions | axis=1",
    "split": "Split h > a b | axis=1 num_outputs=2; Relu b > c; Add a c > actions",
    "shapes": "Shape h > a | start=0 end=1; Concat a rest > b | axis=0; Reshape h b > c; Squeeze c two > d;"
    "Unsqueeze d two > e; Flatten e > f; Tanh f > t; Flatten h > u; Add t u > actions",
    "residual": "MatMul h square > a; Relu a > b; Add h b > actions",
    "zero": "Exp h > a; RandomNormalLike h > n; Mul a n > b; Add h b > actions",
    "transposed": "Transpose square > t | perm=[1,0]; Gemm h t m > actions | alpha=0.5 beta=2.0",
    "conv": "Reshape h image > a; Conv a k kb > b | pads=[1,1,1,1]; Relu b > c; Flatten c > d; MatMul d wide > actions",
    "pools": "Reshape h image > a; MaxPool a > b | kernel_shape=[2,2] pads=[1,1,1,1]; Relu b > c;"
    "AveragePool c > d | kernel_shape=[2,1] strides=[1,2]; GlobalAveragePool a > e; Flatten d > f; Flatten e > p;"
    "Concat f p > actions | axis=1",
    "row": "Reshape h row > a; Conv a line > b | pads=[1,1] strides=[2]; HardSigmoid b > c | alpha=0.3;"
    "MaxPool c > d | kernel_shape=[2]; Flatten d > actions",
    "mean": "Reshape h row > a; ReduceMean a two > b | keepdims=0; Relu h > c; ReduceSum c one > d;"
    "Concat b d > actions | axis=1",
}
"""Nodes behind h, the output of a layer."""


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_computes_what_onnx_runtime_does(name: str, tmp_path: Path):
    arrays = {"w": random(4, 4), "v": random(4), **CONSTANTS}
    path = put(tmp_path, model(f"Gemm obs w v > h | transB=1; {GRAPHS[name]}", arrays))
    policy, observations = load.read(path, head="raw"), random(50, 4)
    want = outputs(path, observations, "actions")
    np.testing.assert_allclose(actions(policy, observations), want, rtol=1e-5, atol=1e-5)


def two_layers(last: str, **options) -> onnx.ModelProto:
    """Two layers and the nodes behind h, with constants for them."""
    arrays = {"w": random(4, 3), "v": random(3), "u": random(3, 4), "two": np.float32(2), "one": np.float32(1)}
    arrays |= {"low": np.float32(-3), "high": np.float32(3), "half": np.float16([1, 2, 3, 4]), "none": np.float32(0)}
    return model(f"MatMul obs w > a; Add a v > b; Relu b > c; MatMul c u > h; {last}", arrays, **options)


LAST, TANH = "Identity h > actions", "Tanh h > actions"
HEADS = {
    "named": (LAST, "", ("clip", -np.inf, np.inf)),
    "raw": (LAST, "raw", ("clip", -np.inf, np.inf)),
    "clip": (LAST, "clip", ("clip", -1, 1)),
    "bounds": (LAST, "tanh:-2,0.5", ("tanh", -2, 0.5)),
    "gaussian": (LAST, "gaussian", ("gaussian", -1, 1)),
    "tanh": (TANH, "", ("tanh", -1, 1)),
    "scaled": ("Tanh h > t; Mul t two > s; Sub one s > actions", "tanh", ("tanh", -1, 3)),
    "clipped": ("Clip h low high > t; Div t two > actions", "", ("clip", -1.5, 1.5)),
}


@pytest.mark.parametrize("name", HEADS)
def test_head_is_the_file_s_or_the_asked_one(name: str, tmp_path: Path):
    text, asked, (kind, low, high) = HEADS[name]
    path, observations = put(tmp_path, two_layers(text)), random(50, 4)
    policy = load.read(path, head=asked)
    assert (policy.head.kind, *policy.head.low[:1], *policy.head.high[:1]) == (kind, low, high)
    assert len(policy.ops) == 3  # the head is not an operator
    if name in ("named", "tanh", "scaled", "clipped"):
        want = outputs(path, observations, "actions")
        np.testing.assert_allclose(actions(policy, observations), want, rtol=1e-5, atol=1e-5)
    if name == "named":
        assert "stay outside" in contract.meaning(policy.head)


def test_masked_samples_become_the_largest_score_of_each_branch(tmp_path: Path):
    text = "Gemm obs w > h | transB=1; Sub one action_masks > block; Mul block big > cut; Add h cut > scores;"
    text += "Split scores sizes > left right | axis=1; Identity sizes > shape; "
    for side in ("left", "right"):
        text += f"Softmax {side} > p_{side}; Add p_{side} small > q_{side}; Log q_{side} > l_{side};"
        text += f"Multinomial l_{side} > m_{side}; "
    arrays = {
        "w": random(5, 4),
        "big": np.float32(1e8),
        "one": np.float32(1),
        "sizes": np.int64([2, 3]),
        "small": np.float32(1e-7),
    }
    ends = {"obs": ["batch", 4], "action_masks": ["batch", 5]}, {"discrete_actions": ["batch", 2], "shape": [2]}
    made = model(f"{text}Concat m_left m_right > discrete_actions | axis=1", arrays, *ends)
    policy, observations = load.read(put(tmp_path, made)), random(50, 4)
    scores = observations @ arrays["w"].T
    assert policy.head.segments == (2, 3)
    want = np.stack([scores[:, :2].argmax(1), scores[:, 2:].argmax(1)], 1)
    np.testing.assert_array_equal(actions(policy, observations), want)


def test_functions_of_the_file_are_followed_with_their_attributes(tmp_path: Path):
    body = nodes("LeakyRelu x > y")
    body[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    function = helper.make_function("own", "Bend", ["x"], ["y"], body, [helper.make_opsetid("", 20)], ["slope"])
    own = {"opsets": [helper.make_opsetid("own", 1)], "functions": [function]}
    path, observations = put(tmp_path, two_layers("Bend h > actions | domain='own' slope=0.3", **own)), random(20, 4)
    want = outputs(path, observations, "actions")
    np.testing.assert_allclose(actions(load.read(path), observations), want, rtol=1e-5)


INPUTS = {"obs": [None, 4], "gain": [None, 1]}
REFUSED = {
    "unread": ("Erf h > p; Relu h > q", {"outputs": {"p": None, "q": None}}, "'q', 'p'; choose the action with --out"),
    "operator": ("Erf@/actor/Erf h > actions", {}, "operator Erf ('/actor/Erf'): it is not in the operator set"),
    "head": ("Relu h > output", {"outputs": {"output": None}}, "choose one of --head raw, clip[:LOW,HIGH]"),
    "outputs": ("Relu h > p; Tanh h > q", {"outputs": {"p": None, "q": None}}, "'p', 'q'; choose the action with --ou"),
    "inputs": ("Add h gain > actions", {"inputs": INPUTS}, "'gain', 'obs', not on one; set those that are constant w"),
    "dynamic": (LAST, {"inputs": {"obs": [None, "n"]}}, "only the batch may be dynamic"),
    "half": ("Mul h half > actions", {}, "'half' does not hold float32 numbers; export it in float32"),
    "zero": ("Div h none > actions", {}, "it divides by 0"),
    "domain": ("Gelu h > actions | domain='own'", {}, "it is in the domain 'own', which is not ONNX's own"),
    "constant": ("Mul h none > actions", {}, "output 'actions' is a constant"),
    "missing": ("Add h nothing > actions", {}, "reads 'nothing', which no node before it computes"),
    "circle": ("Add h q > p; Relu p > q; Relu q > actions", {}, "reads 'q', which no node before it computes"),
    "names": (f"Relu h > w; {LAST}", {}, "two of its values have one name"),
    "cast": ("Cast h > actions | to=10", {}, "it rounds a value to a type other than float32"),
    "huge": ("ConstantOfShape sizes > z; Add h z > actions", {}, "bytes to be made of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_is_no_feedforward_policy_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text, options, said = REFUSED[name]
    made = two_layers(text, **options)
    if name == "huge":
        made.graph.initializer.append(numpy_helper.from_array(np.int64([2**20, 2**20]), "sizes"))
    assert said in refused(capsys, "eval", put(tmp_path, made))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--head", "argmax:2,3"], "--head argmax:2,3 does not fit an output of 4 numbers"),
        (["--head", "clip:1,-1"], "--head clip:1,-1 does not fit an output of 4 numbers"),
        (["--head", "clip:a"], "--head clip:a does not list numbers"),
        (["--output-name", "value"], "--output-name 'value' is not one of its outputs 'actions'"),
        (["--fix", "mask=1"], "--fix names 'mask', but its inputs are 'obs'"),
        (["--fix", "mask"], "--fix takes NAME=VALUE with a finite number, got 'mask'"),
    ],
)
def test_option_that_does_not_fit_the_file_is_refused(words, said, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert said in refused(capsys, "eval", put(tmp_path, two_layers(LAST)), *words)


def test_head_of_another_kind_than_the_file_s_is_refused(tmp_path: Path):
    with pytest.raises(QuarlError, match="ends in Tanh, which decides its head: drop --head raw"):
        quarl.load(put(tmp_path, two_layers(TANH)), head="raw")


def test_equal_outputs_are_one_and_fixed_inputs_are_constants(tmp_path: Path):
    ends = dict.fromkeys(("first", "second", "copied"))
    made = two_layers("Tanh h > first; Tanh h > second; Identity obs > copied", outputs=ends)
    assert load.read(put(tmp_path, made)).head.kind == "tanh"
    path, observations = put(tmp_path, two_layers("Mul h gain > actions", inputs=INPUTS)), random(20, 4)
    doubled, single = (actions(load.read(path, fix={"gain": gain}), observations) for gain in (2, 1))
    np.testing.assert_allclose(doubled, 2 * single, rtol=1e-6)


def test_digest_covers_the_model_and_its_external_data(tmp_path: Path):
    path = put(tmp_path, two_layers(TANH))
    alone = load.contents(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert load.contents(path) == path.read_bytes() + (tmp_path / "m.data").read_bytes() != alone
    assert load.read(path).head.kind == "tanh"


def test_external_data_overlaps_nowhere_and_is_no_link(tmp_path: Path):
    path = put(tmp_path, two_layers(TANH))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    made = onnx.load(path, load_external_data=False)
    (tmp_path / "m.data").rename(tmp_path / "other.data")
    (tmp_path / "m.data").symlink_to("other.data")
    with pytest.raises(QuarlError, match=r"refer to 'm\.data', which is not a file of its folder"):
        load.read(path)
    next(entry for entry in made.graph.initializer[1].external_data if entry.key == "offset").value = "44"
    with pytest.raises(QuarlError, match=r"two of its weights overlap in 'm\.data'"):
        load.read(put(tmp_path, made))


@pytest.mark.slow
def test_export_is_verified_with_the_choices_of_its_agent(tmp_path: Path):
    """The other output of the file balances CartPole's pole, and this one does not."""
    ends = {"obs": [None, 4], "gain": [None, 1]}, {"p": None, "q": None}
    arrays = {"w": np.float32([[0, 0], [0, 0], [-1, 1], [-1, 1]])}
    made = model("MatMul obs w > h; Mul h gain > p; Relu h > q", arrays, *ends)
    words = ["--output-name", "p", "--fix", "gain=-1", "--head", "argmax", "--env", "CartPole-v1", "--episodes", "1"]
    assert main(["export", str(put(tmp_path, made)), *words, "-o", str(tmp_path / "out")]) == 0
    *_, played = (each for each in verify(tmp_path / "out", ["litert"], episodes=10) if isinstance(each, VerifyRow))
    assert re.search(r"fp32 [89]\.\d;", played.detail)


class Deterministic(torch.nn.Module):
    """The module that Stable-Baselines3's guide exports: actions, of PPO with values beside them."""

    def __init__(self, policy: torch.nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self.policy(observation, deterministic=True)


VECTOR, PIXELS = gymnasium.spaces.Box(-9, 9, (4,)), gymnasium.spaces.Box(0, 255, (1, 36, 36), np.uint8)
ARM = gymnasium.spaces.Box(-1, 1, (3,))
AGENTS = {
    "ppo": ("common.policies", "ActorCriticPolicy", VECTOR, ARM, "clip"),
    "ppo-discrete": ("common.policies", "ActorCriticPolicy", VECTOR, gymnasium.spaces.MultiDiscrete([3, 2]), ""),
    "ppo-cnn": ("common.policies", "ActorCriticCnnPolicy", PIXELS, gymnasium.spaces.Discrete(3), ""),
    "sac": ("sac.policies", "SACPolicy", VECTOR, ARM, ""),
    "dqn": ("dqn.policies", "DQNPolicy", VECTOR, gymnasium.spaces.Discrete(3), ""),
    "td3": ("td3.policies", "TD3Policy", VECTOR, ARM, ""),
}
"""Modules and names of policies of Stable-Baselines3, their spaces, and the head that the file leaves open."""
WAYS = [*((name, way) for name in AGENTS for way in ("tracing", "dynamo")), ("dqn", "script"), ("td3", "script")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_exported_sb3_agent_acts_as_in_torch(name: str, way: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)  # torch.export cannot follow it
    file, kind, observed, acted, head = AGENTS[name]
    made = getattr(require.module(f"stable_baselines3.{file}"), kind)(observed, acted, lambda _: 1e-3).eval()
    module, observations = Deterministic(made), np.stack([observed.sample() for _ in range(50)])
    first = torch.from_numpy(observations[:1])
    if way == "dynamo":
        require.module("onnxscript")
    if way == "script":
        torch.jit.trace(module, (first,), check_trace=False).save(path := tmp_path / "m.pt")
    else:
        names = ["actions", "values", "log_prob"][: 3 if name.startswith("ppo") else 1]
        options = {"input_names": ["observation"], "output_names": names, "dynamo": way == "dynamo"}
        torch.onnx.export(module, (first,), path := tmp_path / "m.onnx", verbose=False, **options)
    agent = quarl.load(path, head=head, output_name="actions" if name.startswith("ppo") else "")
    want, _ = made.predict(observations, deterministic=True)
    np.testing.assert_allclose(agent.predict(observations)[0], want, atol=1e-5)
