"""Checkpoints of rsl_rl, rl_games and skrl, as these libraries save them, against the modules that they hold."""

from __future__ import annotations

import numpy as np
import pytest

import quarl
import require

torch = require.module("torch")
nn = torch.nn
ACTIVATIONS = {"elu": nn.ELU, "swish": nn.SiLU, "tanh": nn.Tanh}


def network(activation: str) -> tuple[nn.Sequential, np.ndarray, np.ndarray]:
    """A network 6-16-8-3 with the mean and the variance of its observations."""
    torch.manual_seed(0)
    f, rng = ACTIVATIONS[activation], np.random.default_rng(0)
    layers = nn.Sequential(nn.Linear(6, 16), f(), nn.Linear(16, 8), f(), nn.Linear(8, 3))
    return layers, rng.normal(size=(1, 6)), rng.uniform(0.5, 2, (1, 6))


def named(prefix: str, module: nn.Module) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def checkpoint(library: str, layers: nn.Sequential, mean: np.ndarray, var: np.ndarray) -> dict[str, object]:
    """The content of a checkpoint."""
    mean, var = torch.tensor(mean), torch.tensor(var)
    statistics = {"_mean": mean.float(), "_var": var.float(), "_std": var.sqrt().float(), "count": torch.tensor(9)}
    running = {"running_mean": mean[0], "running_var": var[0], "count": torch.tensor(9.0)}
    if library == "rsl_rl":
        actor = named("actor", layers) | {"std": torch.ones(3)} | named("critic", nn.Linear(6, 1))
        return {"model_state_dict": actor, "obs_norm_state_dict": statistics, "iter": 5, "infos": None}
    if library == "rsl_rl-3":
        own = {f"actor_obs_normalizer.{name}": tensor for name, tensor in statistics.items()}
        return {"model_state_dict": named("actor", layers) | own, "optimizer_state_dict": {"state": {}}}
    if library == "rsl_rl-4":
        own = {f"obs_normalizer.{name}": tensor for name, tensor in statistics.items()}
        return {"actor_state_dict": named("mlp", layers) | own, "critic_state_dict": nn.Linear(6, 1).state_dict()}
    if library == "rl_games":
        model = named("a2c_network.actor_mlp", layers[:4]) | named("a2c_network.mu", layers[4])
        model |= {f"running_mean_std.{name}": tensor for name, tensor in running.items()}
        model |= {f"value_mean_std.{name}": tensor[:1] for name, tensor in running.items() if name != "count"}
        return {"model": model, "epoch": 3, "last_mean_rewards": np.float32(1.5), "env_state": None}
    running["running_variance"] = running.pop("running_var")
    policy = named("net_container", layers[:4]) | named("policy_layer", layers[4]) | {"log_std_parameter": mean[0, :3]}
    return {"policy": policy, "value": nn.Linear(6, 1).state_dict(), "state_preprocessor": running}


NORMALIZED = {
    "rsl_rl": lambda x, mean, var: (x - mean) / (np.sqrt(var) + 1e-2),
    "rsl_rl-3": lambda x, mean, var: (x - mean) / (np.sqrt(var) + 1e-2),
    "rsl_rl-4": lambda x, mean, var: (x - mean) / (np.sqrt(var) + 1e-2),
    "rl_games": lambda x, mean, var: np.clip((x - mean) / np.sqrt(var + 1e-5), -5, 5),
    "skrl": lambda x, mean, var: np.clip((x - mean) / (np.sqrt(var) + 1e-8), -5, 5),
}
YAML = {
    "rsl_rl": "policy: {activation: elu, actor_hidden_dims: [16, 8]}",
    "rsl_rl-3": "policy: {activation: tanh, actor_hidden_dims: [16, 8]}",
    "rsl_rl-4": "actor: {activation: swish}\ncritic: {activation: tanh}",
    "rl_games": "params: {network: {mlp: {activation: elu}}}",
    "skrl": "models: {policy: {network: [{name: net, activations: tanh}]}}",
}


@pytest.mark.parametrize("library", NORMALIZED)
def test_checkpoints_act_as_their_modules(library, tmp_path, capsys):
    activation = next(name for name in ACTIVATIONS if name in YAML[library])
    layers, mean, var = network(activation)
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text(YAML[library])
    (tmp_path / "nn").mkdir()
    torch.save(checkpoint(library, layers, mean, var), tmp_path / "nn" / "model.pt")
    x = np.random.default_rng(1).normal(size=(100, 6), scale=4).astype(np.float32)
    with torch.no_grad():
        wanted = layers(torch.tensor(NORMALIZED[library](x, mean, var)).float()).numpy()
    agent = quarl.load(tmp_path / "nn" / "model.pt")
    assert np.abs(agent.predict(x)[0] - wanted).max() < 1e-5
    said = capsys.readouterr().err
    assert (
        f"{library[:-2] if library[-2] == '-' else library}: layers 6-16-8-3 from the tensors' names and shapes" in said
    )
    assert "agent.yaml, normalized by " in said


def test_checkpoints_without_agent_yaml_need_an_activation(tmp_path):
    layers, mean, var = network("tanh")
    torch.save(checkpoint("rsl_rl", layers, mean, var), tmp_path / "model.pt")
    with pytest.raises(quarl.QuarlError, match=r"and no agent\.yaml beside it does: add --activation, as in elu"):
        quarl.load(tmp_path / "model.pt")
    with pytest.raises(quarl.QuarlError, match="activation 'sine' is not one of relu, "):
        quarl.load(tmp_path / "model.pt", activation="sine")
    with pytest.raises(quarl.QuarlError, match="contains its normalizer and names no algorithm: drop them"):
        quarl.load(tmp_path / "model.pt", activation="tanh", normalize="none")
    (tmp_path / "agent.yaml").write_text("policy: {activation: crelu}")
    with pytest.raises(quarl.QuarlError, match="activation 'crelu' is not one of relu, tanh"):
        quarl.load(tmp_path / "model.pt")
    agent = quarl.load(tmp_path / "model.pt", activation="tanh", head="clip:-1,1")
    assert np.abs(agent.predict(np.full((1, 6), 9, np.float32))[0]).max() <= 1


ONE = {"actor.0.weight": torch.ones(3, 6), "actor.0.bias": torch.ones(3)}
NAN = {**ONE, "actor.0.weight": torch.full((3, 6), torch.nan)}
MEAN = {**ONE, "actor_obs_normalizer._mean": torch.ones(6)}


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ({"actor.0.weight": torch.ones(8, 6), "actor.0.bias": torch.ones(8), "actor.2.weight": torch.ones(3, 7),
          "actor.2.bias": torch.ones(3)}, "layer 'model_state_dict.actor.2' reads 7 numbers, not 8"),
        ({"actor.0.weight": torch.ones(8), "actor.0.bias": torch.ones(8)}, "is not a dense float32 layer with a"),
        ({"actor.0.weight": torch.ones(3, 6)}, "'model_state_dict.actor.0' is not a dense float32 layer with a bias"),
        ({name: tensor[:, :0] if tensor.ndim > 1 else tensor for name, tensor in ONE.items()}, "is not a dense float"),
        ({name: tensor.int() for name, tensor in ONE.items()}, "is not a dense float32 layer with a bias"),
        ({name: tensor.half() for name, tensor in ONE.items()}, "0.weight' has half precision; save the module as fl"),
        (NAN, "holds NaN or infinity"),
        ({name + end: torch.ones(3) for name in ("actor.0", "actor.00") for end in (".weight", ".bias")}, "share a nu"),
        (MEAN, "_mean' has no variance of its size"),
        ({**MEAN, "actor_obs_normalizer._var": torch.ones(5)}, "_mean' has no variance of its size"),
        ({**MEAN, "actor_obs_normalizer._var": -torch.ones(6)}, "variance of layer 'normalized' holds NaN"),
        ({"actor.0.weight": torch.ones(8, 6), "memory_a.rnn.weight_ih_l0": torch.ones(8, 6)}, "is part of a memory"),
        ({"other.weight": torch.ones(8, 6)}, "holds tensors by name, not what to compute with them"),
    ],
)  # fmt: skip
def test_checkpoints_that_are_no_chain_of_layers_are_refused(state, line, tmp_path):
    torch.save({"model_state_dict": state}, tmp_path / "model.pt")
    with pytest.raises(quarl.QuarlError, match=line) as error:
        quarl.load(tmp_path / "model.pt", activation="elu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["params.msgpack", "run/_METADATA"])
def test_checkpoints_of_flax_are_refused_with_the_way_through_onnx(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / name).write_bytes(b"\x81")
    with pytest.raises(quarl.QuarlError, match=r"is a checkpoint of flax or Brax, .*: export the policy to ONNX"):
        quarl.load(tmp_path / name.removesuffix("/_METADATA"))
