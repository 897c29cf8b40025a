"""Recipes of the guides: agents and observation statistics as CleanRL and gymnasium keep them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation
from torch import nn

import quarl
from documents import ROOT, blocks
from quarl.commands import demo
from quarl.config import DemoConfig
from quarl.errors import QuarlError
from quarl.readers.normalizer import sentence

RNG = np.random.default_rng(7)
MEAN, VAR = RNG.normal(size=3) * 5, RNG.uniform(0.01, 9, 3)
ROWS = RNG.normal(MEAN, 20, (64, 3)).astype(np.float32)  # some are clipped
BOX = spaces.Box(-2, 2, (1,), np.float32)


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)


class PPOAgent(nn.Module):
    """An agent in the shape of CleanRL's: two networks and methods, and no forward."""

    def __init__(self, inputs: int, outputs: int, *, discrete: bool) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        actor = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
        if discrete:
            self.actor = actor
        else:
            self.actor_mean, self.actor_logstd = actor, nn.Parameter(torch.zeros(1, outputs))

    def get_action_and_value(self, x: torch.Tensor) -> Any:
        mean = self.actor_mean(x)
        return torch.distributions.Normal(mean, self.actor_logstd.expand_as(mean).exp()).sample(), self.critic(x)


def acted(module: nn.Module, rows: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.as_tensor(rows, dtype=torch.float32)).numpy()


@pytest.mark.parametrize("discrete", [True, False])
def test_an_agent_of_cleanrl_is_refused_and_its_actor_read(discrete):
    agent = PPOAgent(4, 2, discrete=discrete).eval()
    name, head = ("actor", spaces.Discrete(2)) if discrete else ("actor_mean", spaces.Box(-0.5, 0.5, (2,), np.float32))
    with pytest.raises(QuarlError, match=rf"PPOAgent has no forward.*from_module\(agent\.{name}, \.\.\.\)") as raised:
        quarl.from_module(agent, (4,), head)
    assert "\n" not in str(raised.value)
    rows = RNG.normal(size=(100, 4)).astype(np.float32)
    expected, actor = acted(getattr(agent, name), rows), quarl.from_module(getattr(agent, name), (4,), head)
    if discrete:
        assert (actor.predict(rows)[0] == expected.argmax(axis=1)).all()
    else:
        np.testing.assert_allclose(actor.predict(rows)[0], expected.clip(-0.5, 0.5), atol=1e-6)


@pytest.mark.parametrize(("module", "part"), [(nn.ModuleDict({"pi": nn.Linear(4, 2)}), "pi"), (nn.Module(), "actor")])
def test_other_modules_without_forward_name_a_part(module, part):
    with pytest.raises(QuarlError, match=rf"has no forward.*agent\.{part}, "):
        quarl.from_module(module, (4,), spaces.Discrete(2))
    compiled = torch.compile(nn.Linear(4, 2), backend="eager")  # its class has no forward
    assert quarl.from_module(compiled, (4,), spaces.Discrete(2)).predict(np.zeros(4))[0] in (0, 1)


def forms(kind: str, folder: Any) -> Any:
    """The same statistics as a mapping, an object or a file."""
    entries = {"mean": MEAN, "var": VAR, "count": np.float64(1000)}
    if kind == "object":
        return SimpleNamespace(**entries, update=print)
    if kind in ("path", "str"):
        np.savez(folder / "obs_rms.npz", **entries)
        return folder / "obs_rms.npz" if kind == "path" else str(folder / "obs_rms.npz")
    return {"mean": MEAN.tolist(), "var": torch.tensor(VAR)} if kind == "lists" else entries


@pytest.mark.parametrize("kind", ["mapping", "lists", "object", "path", "str"])
def test_statistics_in_any_form_normalize_observations(kind, tmp_path):
    module = PPOAgent(3, 1, discrete=False).actor_mean.eval()
    agent = quarl.from_module(module, (3,), BOX, normalize=forms(kind, tmp_path))
    seen = np.clip((ROWS - MEAN) / np.sqrt(VAR + 1e-8), -10, 10)
    assert (np.abs(seen) == 10).any()
    np.testing.assert_allclose(agent.predict(ROWS)[0], acted(module, seen).clip(-2, 2), atol=1e-5)
    named = str(tmp_path / "obs_rms.npz") if kind in ("path", "str") else "given statistics"
    assert sentence(agent.policy) == f"observations normalized with {named}"


@pytest.mark.parametrize(("clip", "epsilon"), [(2.5, 0.5), (np.inf, 0.0)])
def test_clip_and_epsilon_of_statistics_are_used(clip, epsilon):
    module = nn.Linear(3, 1)
    entries = {"mean": MEAN, "var": VAR, "clip": clip, "epsilon": epsilon}
    agent = quarl.from_module(module, (3,), spaces.Box(-1e6, 1e6, (1,)), normalize=entries)
    expected = acted(module, np.clip((ROWS - MEAN) / np.sqrt(VAR + epsilon), -clip, clip))
    np.testing.assert_allclose(agent.predict(ROWS)[0], expected, rtol=1e-5, atol=1e-5)


def test_statistics_of_gymnasium_act_as_the_wrapper_did():
    wrapped = NormalizeObservation(gymnasium.make("Pendulum-v1"))
    wrapped.reset(seed=0)
    for _ in range(100):
        wrapped.step(wrapped.action_space.sample())
    module, plain = PPOAgent(3, 1, discrete=False).actor_mean.eval(), gymnasium.make("Pendulum-v1")
    agent = quarl.from_module(module, plain.observation_space, plain.action_space, normalize=wrapped.obs_rms)
    wrapped.update_running_mean = False
    for _ in range(20):
        seen = wrapped.step(wrapped.action_space.sample())[0]
        raw = wrapped.unwrapped._get_obs()
        np.testing.assert_allclose(agent.predict(raw)[0], acted(module, seen).clip(-2, 2), atol=1e-5)


class Doubled(nn.Module):
    """A module that shifts and scales its input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(((x - 0.5) / 3).clamp(-1, 1))


def test_statistics_precede_what_the_module_normalizes_itself():
    module = Doubled()
    agent = quarl.from_module(module, (3,), BOX, normalize={"mean": MEAN, "var": VAR})
    seen = np.clip((ROWS - MEAN) / np.sqrt(VAR + 1e-8), -10, 10)
    np.testing.assert_allclose(agent.predict(ROWS)[0], acted(module, seen).clip(-2, 2), atol=1e-5)


def test_images_are_normalized_before_the_module():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    mean, var = RNG.uniform(90, 150, (2, 6, 6)), RNG.uniform(100, 3000, (2, 6, 6))
    agent = quarl.from_module(
        module, (2, 6, 6), spaces.Discrete(2), observation_dtype="uint8", normalize={"mean": mean, "var": var}
    )
    images = RNG.integers(0, 256, (64, 2, 6, 6), np.uint8)
    expected = acted(module, np.clip((images - mean) / np.sqrt(var + 1e-8), -10, 10)).argmax(axis=1)
    assert set(expected) == {0, 1}  # actions that depend on the image
    assert (agent.predict(images)[0] == expected).all()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(3, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        y, state = self.memory(x[None], state)
        return self.head(y[0]), state


def test_statistics_hold_for_the_observation_beside_a_state(tmp_path):
    module, start = Recurrent().eval(), np.full((1, 1, 16), 0.25, np.float32)
    agent = quarl.from_module(module, (3,), BOX, state=((start, start),), normalize={"mean": MEAN, "var": VAR})
    agent.save(tmp_path / "agent.quarl")
    agent = quarl.load(tmp_path / "agent.quarl")
    state, carried = None, (torch.tensor(start), torch.tensor(start))
    for row in ROWS[:20]:
        action, state = agent.predict(row, state)
        seen = np.clip((row - MEAN) / np.sqrt(VAR + 1e-8), -10, 10)
        with torch.no_grad():
            expected, carried = module(torch.as_tensor(seen[None], dtype=torch.float32), carried)
        np.testing.assert_allclose(action, expected[0].numpy().clip(-2, 2), atol=1e-5)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_agents_with_statistics_are_quantized_and_exported(mode, tmp_path):
    module = PPOAgent(3, 1, discrete=False).actor_mean.eval()
    agent = quarl.from_module(module, (3,), BOX, normalize={"mean": MEAN, "var": VAR})
    small = agent.quantize("int8", mode=mode, observations=RNG.normal(MEAN, np.sqrt(VAR), (1000, 3)))
    away = np.abs(small.predict(ROWS)[0] - agent.predict(ROWS)[0])
    assert away.mean() < 0.1 * np.ptp(agent.predict(ROWS)[0])
    small.save(tmp_path / "policy.tflite")


WRONG: dict[str, tuple[Any, str]] = {
    "length": ({"mean": MEAN[:2], "var": VAR}, r"normalize has mean of shape \(2,\), but the module observes \(3,\)"),
    "scalar": ({"mean": MEAN, "var": 1.0}, r"normalize has var of shape \(\)"),
    "negative": ({"mean": MEAN, "var": -VAR}, "variance is negative"),
    "zero": ({"mean": MEAN, "var": 0 * VAR, "epsilon": 0}, "or 0 with epsilon 0"),
    "nan": ({"mean": MEAN * np.nan, "var": VAR}, "NaN or infinity"),
    "huge": ({"mean": MEAN + 1e300, "var": VAR}, "finite|float32|NaN"),
    "clip": ({"mean": MEAN, "var": VAR, "clip": 0}, "no usable epsilon"),
    "none": ({"mean": MEAN, "var": VAR, "clip": None}, "no usable epsilon"),
    "epsilon": ({"mean": MEAN, "var": VAR, "epsilon": np.nan}, "no usable epsilon"),
    "typo": ({"mean": MEAN, "var": VAR, "clip_obs": 5}, r"unknown entry 'clip_obs' \(known: mean, var, clip, eps"),
    "std": ({"mean": MEAN}, "normalize has no var: give mean and var"),
    "text": ({"mean": np.array(["a"] * 3), "var": VAR}, "in real numbers"),
    "ragged": ({"mean": [[1], [2, 3]], "var": VAR}, "not an array of numbers"),
    "gradient": ({"mean": torch.ones(3, requires_grad=True), "var": VAR}, "not an array of numbers"),
    "missing": ("absent.npz", "absent.npz"),
}


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=list(WRONG))
def test_unusable_statistics_are_refused_in_one_line(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QuarlError, match=said) as raised:
        quarl.from_module(nn.Linear(3, 1), (3,), BOX, normalize=given)
    assert "\n" not in str(raised.value)


def test_files_of_statistics_are_data(tmp_path):
    np.savez(tmp_path / "objects.npz", mean=np.array([print] * 3, object), var=VAR)
    (tmp_path / "text.npz").write_text("mean")
    for name in ("objects.npz", "text.npz"):
        with pytest.raises(QuarlError, match=name):
            quarl.from_module(nn.Linear(3, 1), (3,), BOX, normalize=tmp_path / name)


def test_recipe_of_the_guide_reads_an_agent_of_cleanrl(tmp_path, monkeypatch):
    texts = [block.text for block in blocks(ROOT / "docs/guide/agents.md") if "actor_mean" in block.text]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("".join(texts), names)
    rows = names["env"].observation_space.sample()[None]
    rms = names["env"].obs_rms
    seen = np.clip((rows - rms.mean) / np.sqrt(rms.var + 1e-8), -10, 10)
    expected = acted(names["agent"].actor_mean, seen).clip(-2, 2)
    np.testing.assert_allclose(names["actor"].predict(rows)[0], expected, atol=1e-5)


def test_python_block_of_readme_runs_after_the_demo(tmp_path, monkeypatch):
    (text,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    (path,) = re.findall(r'load\("(.+?)"\)', text)
    assert path == str(DemoConfig().output / demo.AGENT.name)  # the demo writes it
    monkeypatch.chdir(tmp_path)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_bytes(demo.AGENT.read_bytes())
    names: dict[str, Any] = {}
    exec(text.replace("episodes=20", "episodes=1"), names)
    assert [row.precision for row in names["table"]] == ["fp32", "int8", "int4e8"]
    assert (tmp_path / "policy.tflite").stat().st_size > 0
