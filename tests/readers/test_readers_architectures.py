"""Networks as people's libraries have them, rebuilt by their shapes: the graph computes what torch does."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from torch import nn

import quarl
from quarl import engines
from quarl.calibration import quantize
from quarl.errors import QuarlError, UnsupportedError, note_once
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Activation, Conv2d, Dense, Normalize, Pool2d, Scale, Slice, Softmax
from quarl.quant.spec import QuantSpec
from quarl.readers.extract import from_module

SCORES = ActionHead("argmax")


def rows(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, *shape)).astype(np.float32)


def computed(policy: Policy, x: np.ndarray, engine: str = "reference") -> np.ndarray:
    return engines.run_all(engines.load(quantize(policy, QuantSpec.parse("fp32")), engine, batch=len(x)), x)


def same(
    module: nn.Module, shape: tuple[int, ...], head: Any = SCORES, tolerance: float = 2e-6, **options: Any
) -> Policy:
    """The policy of a module with random weights and statistics, whose output is the module's on every engine."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        if parameter.ndim == 1 and len(parameter) > 1:
            nn.init.normal_(parameter, 0, 0.3)
    for name, buffer in module.named_buffers():
        if "mean" in name:
            buffer.normal_(0, 0.5)
        elif "var" in name or "std" in name:
            buffer.uniform_(0.5, 2)
    policy = from_module(module, shape, head=head, **options)
    x = rows(64, *shape)
    if policy.observation_dtype == "uint8":
        x = (np.random.default_rng(1).integers(0, 256, (64, *shape))).astype(np.uint8)
    with torch.no_grad():
        expected = module.eval()(torch.as_tensor(x)).numpy()
    for engine in engines.ENGINES:
        np.testing.assert_allclose(computed(policy, x, engine), expected, rtol=tolerance, atol=tolerance)
    for precision in ("int8", "int4"):  # static mode is exact wherever no float sum is in between
        made = quantize(policy, QuantSpec.parse(precision, mode="static"), x)
        run = {engine: engines.run_all(engines.load(made, engine, batch=64), x) for engine in ("reference", "litert")}
        float_at_last = isinstance(policy.ops[-1], Activation | Scale | Normalize)
        if not float_at_last and not any(
            isinstance(op, Softmax) or type(op).__name__ == "LayerNorm" for op in policy.ops
        ):
            np.testing.assert_array_equal(run["reference"], run["litert"])
    return policy


def kinds(policy: Policy) -> list[str]:
    return [getattr(op, "kind", type(op).__name__) for op in policy.ops]


ACTIVATIONS = {
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "mish": nn.Mish(),
    "softplus": nn.Softplus(),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "selu": nn.SELU(),
    "clip": nn.ReLU6(),
    "prelu": nn.LeakyReLU(0.2),
}


@pytest.mark.parametrize("kind", list(ACTIVATIONS))
def test_activations_are_torchs_everywhere(kind: str):
    """From values that vanish to values beyond every bend."""
    policy = from_module(ACTIVATIONS[kind], (4001,), head=SCORES)
    assert kinds(policy) == [kind]
    x = np.linspace(-30, 30, 4001, dtype=np.float32)[None]
    exact = ACTIVATIONS[kind](torch.as_tensor(x.astype(np.float64))).numpy()
    for engine in engines.ENGINES:
        np.testing.assert_allclose(computed(policy, x, engine), exact, rtol=1e-6, atol=1.5e-6)


OPTIONS = {"selu": nn.ELU(0.5), "prelu": nn.PReLU(), "clip": nn.Hardtanh(-0.5, 2), "leaky_relu": nn.LeakyReLU()}


@pytest.mark.parametrize(("kind", "module"), [*ACTIVATIONS.items(), *OPTIONS.items(), ("relu", nn.ReLU())])
def test_networks_of_every_activation_are_torchs(kind: str, module: nn.Module):
    policy = same(nn.Sequential(nn.Linear(5, 16), module, nn.Linear(16, 16), module, nn.Linear(16, 3)), (5,))
    assert kinds(policy) == ["Dense", kind, "Dense", kind, "Dense"]


class Function(nn.Module):
    """A function around layers."""

    def __init__(self, function: Any, **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("std", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


AFFINE = {
    "sum and product": lambda m, x: m.one(x) * 2.5 + 1,
    "vectors": lambda m, x: (m.one(x) - m.mean) / m.std,
    "reversed": lambda m, x: 1 - 2 * m.one(x),
    "negative": lambda m, x: -m.one(x),
    "less its mean": lambda m, x: m.one(x) - m.one(x).mean(-1, keepdim=True),
    "a part": lambda m, x: m.one(x)[:, 1:3],
    "a half": lambda m, x: m.one(x).chunk(2, dim=-1)[0] * 3,
    "a mean of quantiles": lambda m, x: m.one(x).view(-1, 2, 2).mean(2),
    "rearranged": lambda m, x: m.one(x).view(-1, 2, 2).transpose(1, 2).flatten(1),
    "one number": lambda m, x: m.one(x).sum(-1).unsqueeze(1),
}


@pytest.mark.parametrize("name", list(AFFINE))
def test_what_constants_do_to_a_layer_goes_into_it(name: str):
    policy = same(Function(AFFINE[name], one=nn.Linear(4, 4)), (4,))
    assert kinds(policy) == ["Dense"]
    assert policy.ops[0].name == "one"


def test_a_layer_that_others_read_as_it_is_keeps_its_weights():
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.one(x)
        return m.two(torch.relu(h) + (h * 2 + 1))

    policy = same(Function(forward, one=nn.Linear(4, 4), two=nn.Linear(4, 2)), (4,))
    assert [op.name for op in policy.linear] == ["one", "two"]
    assert kinds(policy) == ["Dense", "relu", "Normalize", "Add", "Dense"]


def test_constants_are_computed_and_observations_are_normalised_in_float():
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.one(torch.clamp((x - m.mean) / torch.sqrt(m.std.square() + 1e-8), -2, 2))

    policy = same(Function(forward, one=nn.Linear(4, 2)), (4,))
    assert kinds(policy) == ["Normalize", "Dense"]
    assert policy.ops[0].clip == 2


def test_batch_norm_goes_into_the_layer_before_or_after():
    before = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    assert kinds(same(before, (4,))) == ["Dense", "relu", "Dense"]
    after = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    assert kinds(same(after, (4,))) == ["Dense", "relu", "Dense"]
    alone = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert kinds(same(alone, (4,)))[-2:] == ["Normalize", "Dense"]


@pytest.mark.parametrize("padding", [0, 1])
def test_batch_norm_of_images_stays_outside_a_margin_of_zeros(padding: int):
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)]
    module = nn.Sequential(
        *layers, nn.Conv2d(4, 3, 3, padding=padding), nn.ReLU(), nn.Flatten(), nn.Linear((64 if padding else 36) * 3, 2)
    )
    policy = same(module, (2, 8, 8), tolerance=1e-5)
    assert ("Normalize" in kinds(policy)) == bool(padding)


def test_pools_are_torchs():
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.MaxPool2d(3, 2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(6, 6, 2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )
    policy = same(module, (3, 16, 16), tolerance=1e-5)
    assert [op.kind for op in policy.ops if isinstance(op, Pool2d)] == ["max", "average", "average"]


def test_convolutions_along_time_are_those_of_images_of_one_row():
    """A history of 10 observations of 4 numbers each, behind the newest (RMA's adaptation module)."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        newest, history = x[:, :3], x[:, 3:].view(-1, 4, 10)
        features = torch.relu(m.two(torch.relu(m.one(history)))).flatten(1)
        return m.last(torch.cat([newest, features], dim=-1))

    module = Function(
        forward, one=nn.Conv1d(4, 8, 4, stride=2), two=nn.Conv1d(8, 5, 3, padding=1), last=nn.Linear(23, 2)
    )
    policy = same(module, (43,))
    assert [op.weight.shape for op in policy.linear if isinstance(op, Conv2d)] == [(8, 4, 1, 4), (5, 8, 1, 3)]
    assert any(isinstance(op, Slice) for op in policy.ops)


def impala_block(channels: int) -> nn.Module:
    return Function(
        lambda m, x: x + m.conv1(torch.relu(m.conv0(torch.relu(x)))),
        conv0=nn.Conv2d(channels, channels, 3, padding=1),
        conv1=nn.Conv2d(channels, channels, 3, padding=1),
    )


def test_impala_is_torchs():
    sequence = [nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), impala_block(8), impala_block(8)]
    module = nn.Sequential(*sequence, nn.Flatten(), nn.ReLU(), nn.Linear(8 * 64, 16), nn.ReLU(), nn.Linear(16, 5))
    scaled = Function(lambda m, x: m.net(x.float() / 255.0), net=module)
    policy = same(scaled, (3, 16, 16), observation_dtype="uint8", tolerance=1e-5)
    assert isinstance(policy.ops[0], Scale)
    assert policy.ops[0].factor == np.float32(1 / 255)


def tanh_actor(inputs: int, actions: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions))


class CleanPPO(nn.Module):
    """ppo_continuous_action.py behind NormalizeObservation and TransformObservation's clip."""

    def __init__(self) -> None:
        super().__init__()
        self.actor_mean = tanh_actor(4, 2)
        self.critic = tanh_actor(4, 1)
        self.actor_logstd = nn.Parameter(torch.zeros(1, 2))
        self.register_buffer("obs_mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("obs_var", torch.ones(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised = (x - self.obs_mean.float()) / torch.sqrt(self.obs_var.float() + 1e-8)
        return self.actor_mean(torch.clip(normalised, -10, 10))


def test_cleanrl_ppo_of_continuous_actions():
    box = gymnasium.spaces.Box(-1, 1, (2,))
    policy = same(CleanPPO(), (4,), ActionHead("clip", box.low, box.high))
    assert kinds(policy) == ["Normalize", "Dense", "tanh", "Dense", "tanh", "Dense"]
    assert [op.name for op in policy.linear] == ["actor_mean.0", "actor_mean.2", "actor_mean.4"]
    assert policy.head.kind == "clip"


def test_cleanrl_c51_scores_the_expectations_of_its_distributions():
    class QNetwork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("atoms", torch.linspace(-100, 100, steps=101))
            self.n, self.n_atoms = 2, 101
            self.network = nn.Sequential(
                nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 202)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = self.network(x)
            pmfs = torch.softmax(logits.view(len(x), self.n, self.n_atoms), dim=2)
            return (pmfs * self.atoms).sum(2)

    policy = same(QNetwork(), (4,), tolerance=2e-5)
    assert kinds(policy) == ["Dense", "relu", "Dense", "relu", "Dense", "Softmax", "Dense"]
    assert np.array_equal(policy.linear[-1].weight[1, 101:], np.linspace(-100, 100, 101, dtype=np.float32))


class CleanActor(nn.Module):
    """ddpg_continuous_action.py and td3_continuous_action.py; with `hidden`, the greedy way through SAC's."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc_mu = nn.Linear(3, 64), nn.Linear(64, 64), nn.Linear(64, 2)
        self.register_buffer("action_scale", torch.tensor([(high - low) / 2] * 2))
        self.register_buffer("action_bias", torch.tensor([(high + low) / 2] * 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return torch.tanh(self.fc_mu(x)) * self.action_scale + self.action_bias


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-2, 2), (0.5, 3)])
def test_a_last_tanh_to_the_bounds_is_the_heads(low: float, high: float):
    """DDPG, TD3, and SAC's mean."""
    module = CleanActor(low, high)
    agent = quarl.Agent.from_module(module, (3,), gymnasium.spaces.Box(low, high, (2,)))
    policy = agent.policy
    assert policy.head.kind == "tanh"
    assert kinds(policy) == ["Dense", "relu", "Dense", "relu", "Dense"]
    x = rows(64, 3)
    with torch.no_grad():
        expected = module(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(policy.head(computed(policy, x, "litert")), expected, rtol=0, atol=1e-6)


def test_a_last_tanh_to_other_bounds_stays():
    policy = same(CleanActor(-1, 1), (3,), ActionHead("clip", np.full(2, -2, "f4"), np.full(2, 2, "f4")))
    assert kinds(policy)[-1] == "tanh"
    assert policy.head.kind == "clip"


def test_a_last_softmax_is_left_out_of_scores_which_is_said_and_stays_elsewhere(capsys):
    note_once.cache_clear()
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Softmax(dim=-1))
    policy = from_module(net, (4,), head=SCORES)
    assert kinds(policy) == ["Dense", "tanh", "Dense"]
    assert "the module's last softmax is left out" in capsys.readouterr().err
    x = rows(64, 4)
    assert np.array_equal(policy.head(computed(policy, x)), net(torch.as_tensor(x)).argmax(1).numpy())
    assert kinds(from_module(nn.Sequential(*net[:-1], nn.LogSoftmax(dim=-1)), (4,), head=SCORES))[-1] == "Dense"
    shares = same(net, (4,), ActionHead("clip", np.zeros(3, "f4"), np.ones(3, "f4")))
    assert kinds(shares)[-1] == "Softmax"


class EmpiricalNormalization(nn.Module):
    """rsl_rl's: a standard deviation, not a variance, plus epsilon."""

    def __init__(self, shape: int) -> None:
        super().__init__()
        self.eps = 1e-2
        self.register_buffer("_mean", torch.zeros(shape).unsqueeze(0))
        self.register_buffer("_var", torch.ones(shape).unsqueeze(0))
        self.register_buffer("_std", torch.ones(shape).unsqueeze(0))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self._mean) / (self._std + self.eps)


def test_rsl_rls_actor():
    actor = nn.Sequential(nn.Linear(12, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 3))
    module = nn.Sequential(EmpiricalNormalization(12), actor)
    policy = same(module, (12,), ActionHead("clip", np.full(3, -100, "f4"), np.full(3, 100, "f4")))
    assert kinds(policy) == ["Normalize", "Dense", "elu", "Dense", "elu", "Dense"]
    assert isinstance(policy.ops[0], Normalize)
    np.testing.assert_allclose(policy.ops[0].inverse_std, 1 / (module[0]._std[0].numpy() + 1e-2), rtol=1e-6)


@pytest.mark.parametrize("separate", [True, False])
def test_dueling_networks_take_the_mean_out_in_the_layer(separate: bool):
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(m.features(x))
        value, advantage = m.value(h), m.advantage(h)
        mean = advantage.mean(1, keepdim=True)
        return value + (advantage - mean) if separate else value + advantage - mean

    layers = {"features": nn.Linear(4, 16), "value": nn.Linear(16, 1), "advantage": nn.Linear(16, 3)}
    policy = same(Function(forward, **layers), (4,))
    assert {type(op).__name__ for op in policy.ops} == {"Dense", "Activation", "Add"}


def test_residual_networks_of_layer_norm_and_silu():
    """As SimBa's and BRO's blocks are."""

    def block(m: Any, x: torch.Tensor) -> torch.Tensor:
        return x + m.two(torch.nn.functional.silu(m.one(m.norm(x))))

    blocks = [Function(block, norm=nn.LayerNorm(16), one=nn.Linear(16, 64), two=nn.Linear(64, 16)) for _ in range(2)]
    module = nn.Sequential(nn.Linear(5, 16), *blocks, nn.LayerNorm(16, elementwise_affine=False), nn.Linear(16, 3))
    policy = same(module, (5,), tolerance=1e-5)
    assert kinds(policy).count("Add") == 2


@pytest.mark.slow
def test_random_networks_over_the_closed_set_are_torchs_and_static_bits_are_equal():
    rng = np.random.default_rng(7)
    for _ in range(12):
        width, layers = 6, []
        for _ in range(rng.integers(1, 4)):
            following = int(rng.integers(3, 20))
            layers.append(nn.Linear(width, following))
            if rng.random() < 0.3:
                layers.append(nn.BatchNorm1d(following))
            layers.append(ACTIVATIONS[str(rng.choice(list(ACTIVATIONS)))])
            if rng.random() < 0.3:
                factor, offset = float(rng.normal()), float(rng.normal())
                layers.append(Function(lambda m, x, a=factor, b=offset: x * a + b))
            width = following
        same(nn.Sequential(*layers, nn.Linear(width, 3)), (6,), tolerance=1e-5)


def test_artefacts_keep_what_is_new(tmp_path: Any):
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.MaxPool2d(2),
        nn.ReLU6(),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.GELU(),
        nn.Linear(8, 4),
        nn.Softmax(-1),
        nn.Linear(4, 2),
    )
    policy = from_module(module, (2, 8, 8), head=SCORES)
    x = rows(16, 2, 8, 8)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    quarl.Agent(made).save(tmp_path / "a.quarl")
    again = quarl.load(tmp_path / "a.quarl").policy
    assert [op.settings for op in again.ops if isinstance(op, Activation)] == [(0.0, 6.0), ()]
    runs = [engines.run_all(engines.load(p, "reference", batch=16), x) for p in (made, again)]
    np.testing.assert_array_equal(*runs)
    assert isinstance(again.ops[0], Conv2d)
    assert isinstance(again.ops[-1], Dense)


@pytest.mark.parametrize("activation", [nn.SiLU, nn.GELU, nn.Mish, nn.Softplus, nn.Hardswish, nn.Hardsigmoid])
def test_activations_of_stable_baselines3_are_read_from_zips_and_models(activation: type[nn.Module], tmp_path: Any):
    model = PPO("MlpPolicy", "Pendulum-v1", policy_kwargs={"activation_fn": activation, "net_arch": [8, 8]}, n_steps=64)
    model.save(tmp_path / "a.zip")
    x = 2 * rows(200, 3)
    expected, _ = model.predict(x, deterministic=True)
    for policy in (quarl.load(tmp_path / "a.zip").policy, quarl.Agent.from_model(model).policy):
        actions = policy.head(computed(policy, x, "litert"))
        np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)


CONTEXTS = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", enabled=False),
}


@pytest.mark.parametrize("outer", list(CONTEXTS))
@pytest.mark.parametrize("inner", [None, "no_grad", "autocast"])
def test_contexts_that_change_no_number_are_followed(outer: str, inner: str | None):
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with CONTEXTS[outer]():
            x = (x - m.mean) / torch.sqrt(m.std + 1e-5) * torch.tensor([1.0, 2.0, 3.0, 4.0])
            with CONTEXTS[inner]() if inner else contextlib.nullcontext():
                y = x * torch.full((4,), 2.0) + torch.arange(4)
            both = y - 1
        return m.layer(both) + x.sum(1, keepdim=True)

    module = Function(forward, layer=nn.Linear(4, 3))
    policy = from_module(module, (4,), head=SCORES)
    with torch.no_grad():
        expected = module(torch.as_tensor(rows(20, 4))).numpy()
    np.testing.assert_allclose(computed(policy, rows(20, 4)), expected, rtol=1e-5, atol=1e-5)


def test_autocast_that_rounds_is_refused_with_the_way():
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return m.layer(x).float()

    with pytest.raises(UnsupportedError, match=r"torch\.bfloat16; .*end autocast"):
        from_module(Function(forward, layer=nn.Linear(4, 3)), (4,), head=SCORES)


RETURNS: dict[str, Any] = {
    "pair": (lambda m, x: (m.value(x), m.layer(x)), 1),
    "first": (lambda m, x: (m.layer(x), None, x.exp().sum(1).argsort()), 0),
    "nested": (lambda m, x: (m.value(x), {"state": (x * x, m.layer(x))}), 2),
    "in place": (lambda m, x: (torch.relu_(m.layer(x)), torch.relu_(m.value(x)).exp()), 0),
}


@pytest.mark.parametrize("name", list(RETURNS))
def test_from_module_reads_the_chosen_one_of_several_outputs(name: str):
    """The others may hold what no operator computes."""
    function, place = RETURNS[name]
    module = Function(function, layer=nn.Linear(4, 3), value=nn.Linear(4, 1))
    policy = from_module(module, (4,), head=SCORES, output=place)
    with torch.no_grad():
        results, _ = torch.utils._pytree.tree_flatten(module(torch.as_tensor(rows(20, 4))))
    np.testing.assert_allclose(computed(policy, rows(20, 4)), results[place].numpy(), rtol=1e-6, atol=1e-6)
    with pytest.raises(UnsupportedError, match=rf"returns {len(results)} values: choose .* output=0 to output="):
        from_module(module, (4,), head=SCORES)
    for wrong in (-1, len(results)):
        with pytest.raises(QuarlError, match=rf"output={wrong} is not one of the module's"):
            from_module(module, (4,), head=SCORES, output=wrong)


def test_agents_of_modules_take_the_output_and_compiled_ones_keep_their_names():
    module = Function(lambda m, x: (m.value(x), m.layer(x)), layer=nn.Linear(4, 3), value=nn.Linear(4, 1))
    agent = quarl.from_module(torch.compile(module, backend="eager"), (4,), gymnasium.spaces.Discrete(3), output=1)
    assert [op.name for op in agent.policy.linear] == ["layer"]
    with torch.no_grad():
        expected = module.layer(torch.as_tensor(rows(20, 4))).argmax(1).numpy()
    assert np.array_equal(agent.predict(rows(20, 4))[0], expected)


@pytest.mark.parametrize(
    "pool",
    [nn.AvgPool1d(2), nn.AvgPool1d(3, 2, 1), nn.MaxPool1d(2), nn.MaxPool1d(3, 1, 1), nn.AdaptiveAvgPool1d(1)],
    ids=str,
)
def test_pooling_along_one_axis_is_torchs(pool: nn.Module):
    size = pool(torch.zeros(1, 5, 12)).numel()
    policy = same(nn.Sequential(nn.Conv1d(2, 5, 1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(size, 3)), (2, 12))
    assert [type(op).__name__ for op in policy.ops].count("Pool2d") == 1


STATISTICS = {
    "division": lambda m, x: (x - m.wide_mean) / m.wide_var,
    "gymnasium": lambda m, x: (x - m.wide_mean) / torch.sqrt(m.wide_var + 1e-8),
    "clipped": lambda m, x: torch.clamp((x.double() - m.wide_mean) / m.wide_var, -2, 2),
    "product": lambda m, x: -(x * m.wide_var) + m.wide_mean,
}


@pytest.mark.parametrize("far", [0.0, 1e5])
@pytest.mark.parametrize("name", list(STATISTICS))
def test_statistics_in_float64_are_computed_as_exactly(name: str, far: float):
    """A mean of many deviations keeps what float32 would lose: the result is that of float64, rounded."""
    module = Function(lambda m, x: m.layer(STATISTICS[name](m, x).float()), layer=nn.Linear(4, 3))
    drawn = torch.Generator().manual_seed(0)
    module.register_buffer("wide_mean", far + torch.rand(4, generator=drawn, dtype=torch.float64))
    module.register_buffer("wide_var", 0.5 + torch.rand(4, generator=drawn, dtype=torch.float64))
    policy = from_module(module, (4,), head=SCORES)
    x = (rows(50, 4) + far).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.as_tensor(x)).numpy()
    scale = max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(computed(policy, x), expected, rtol=0, atol=8 * np.finfo(np.float32).eps * scale)
