"""Conversion of a Stable-Baselines3 model into arrays and JSON values, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from operator import attrgetter
from typing import Any, TypeVar

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError

Facts = dict[str, Any]
T = TypeVar("T")
COUNTERS = (
    "num_timesteps",
    "_n_updates",
    "_n_calls",
    "_episode_num",
    "exploration_rate",
    "_current_progress_remaining",
    "_total_timesteps",
    "_num_timesteps_at_start",
)
"""Stable-Baselines3's clocks, as far as an algorithm has them; schedules are functions of these."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)
"""Exceptions that values not written by a learner raise while they are restored."""


def identity(model: BaseAlgorithm) -> dict[str, str | None]:
    """Return the facts that must agree before weights are compared.

    They are the algorithm, the spaces and, if known, the environment's id.
    """
    spec = next(iter(model.env.get_attr("spec")), None) if model.env is not None else None
    return {
        "algorithm": type(model).__name__,
        "environment": getattr(spec, "id", None),
        "observation space": str(model.observation_space),
        "action space": str(model.action_space),
    }


def take(model: BaseAlgorithm) -> tuple[Facts, dict[str, Array]]:
    """Return JSON values and arrays of the model; raise QuarlError naming the layer if a weight is NaN or infinite.

    The arrays are views if the model is in main memory.
    """
    tensors = _tensors(model)
    optimizers: Facts = {}
    for name, optimizer in _optimizers(model):
        state = optimizer.state_dict()
        numbers: dict[str, Facts] = {}
        for index, entries in state["state"].items():
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{name}/{index}/{key}"] = value
                else:
                    numbers.setdefault(str(index), {})[key] = value
        groups = [{**group, "params": len(group["params"])} for group in state["param_groups"]]
        kept = sorted(key for key, _ in _below(name, tensors))
        optimizers[name] = {"class": type(optimizer).__name__, "groups": groups, "numbers": numbers, "tensors": kept}
    _check_finite(model, tensors)
    facts = {
        "identity": identity(model),
        "counters": {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
        "optimizers": optimizers,
    }
    return facts, {name: _array(name, tensor) for name, tensor in tensors.items()}


def check(model: BaseAlgorithm, facts: Facts, arrays: Mapping[str, Array]) -> None:
    """Check that `give` can restore these values into this model.

    Args:
        model: Model that would receive the values.
        facts: JSON values returned by `take`.
        arrays: Arrays returned by `take`.

    Raises:
        QuarlError: They do not fit; the message names the first difference.
    """
    for what, here in identity(model).items():
        there = facts["identity"][what]
        if there != here and (what != "environment" or None not in (there, here)):
            raise QuarlError(
                f"its {what} is {there} and this run's is {here}; resume with the options of the first run"
            )
    # networks, tensors and statistics first: their names are known before the first update
    optimizers = dict(_optimizers(model))
    saved = {name: array for name, array in arrays.items() if name.partition("/")[0] not in optimizers}
    if differs := difference(saved, _tensors(model)):
        name, there, here = differs
        raise QuarlError(
            f"{name.partition('/')[2]} is {there} there and {here} in this run; "
            "resume with the options of the first run, such as --net-arch"
        )
    if facts["optimizers"].keys() != optimizers.keys():
        raise QuarlError(f"its optimizers are {list(facts['optimizers'])} and this run's are {list(optimizers)}")
    for name, optimizer in optimizers.items():
        _check_optimizer(name, optimizer, facts["optimizers"][name], arrays)


def give(model: BaseAlgorithm, facts: Facts, arrays: Mapping[str, Array]) -> None:
    """Restore all values returned by `take`; call `check` first.

    Args:
        model: Model that receives the values.
        facts: JSON values returned by `take`.
        arrays: Arrays returned by `take`.
    """
    # networks
    for name, module in _modules(model):
        module.load_state_dict({key: torch.from_numpy(a) for key, a in _below(name, arrays)})
    # optimizers, whose state exists only after the first update
    for name, optimizer in _optimizers(model):
        saved = facts["optimizers"][name]
        state: dict[int, Facts] = {int(index): dict(numbers) for index, numbers in saved["numbers"].items()}
        for key, array in _below(name, arrays):
            index, _, entry = key.partition("/")
            # a copy: the optimizer keeps the tensor, and these bytes are the mapped file
            state.setdefault(int(index), {})[entry] = torch.from_numpy(array.copy())
        groups = _groups(optimizer, saved)
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    # single tensors, statistics of VecNormalize, clocks
    with torch.no_grad():
        for name in model._get_torch_save_params()[1]:
            attrgetter(name)(model).copy_(torch.from_numpy(arrays[f"tensor/{name}"]))
    for name, statistics in _statistics(model):
        statistics.mean = arrays[f"{name}/mean"].copy()
        statistics.var = arrays[f"{name}/var"].copy()
        statistics.count = arrays[f"{name}/count"].item()
    for name in COUNTERS:
        if hasattr(model, name):
            setattr(model, name, _like(getattr(model, name), facts["counters"][name]))


def difference(saved: Mapping[str, Any], present: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the first array that differs as (name, dtype and shape in `saved`, the same in `present`), or None."""
    for name in sorted({*saved, *present}):
        there, here = (
            f"{arrays[name].dtype} {tuple(arrays[name].shape)}".removeprefix("torch.") if name in arrays else "missing"
            for arrays in (saved, present)
        )
        if there != here:
            return name, there, here
    return None


def _modules(model: BaseAlgorithm) -> Iterator[tuple[str, torch.nn.Module]]:
    for name in model._get_torch_save_params()[0]:
        if isinstance(module := attrgetter(name)(model), torch.nn.Module):
            yield name, module


def _optimizers(model: BaseAlgorithm) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    for name in model._get_torch_save_params()[0]:
        if isinstance(part := attrgetter(name)(model), torch.optim.Optimizer):
            yield name, part
        elif not isinstance(part, torch.nn.Module):
            raise UnsupportedError(f"{name} is a {type(part).__name__}, which a checkpoint cannot hold")


def _statistics(model: BaseAlgorithm) -> Iterator[tuple[str, RunningMeanStd]]:
    """Yield VecNormalize's statistics if the model has it."""
    for name in ("obs_rms", "ret_rms"):
        statistics = getattr(model.get_vec_normalize_env(), name, None)
        if isinstance(statistics, RunningMeanStd):
            yield f"vecnormalize/{name}", statistics
        elif statistics is not None:
            raise UnsupportedError(f"VecNormalize's {name} is a {type(statistics).__name__}; flatten the observations")


def _tensors(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    """Return all tensors except the optimizers' state, whose names appear with the first update."""
    tensors = {f"{name}/{key}": value for name, module in _modules(model) for key, value in module.state_dict().items()}
    tensors |= {f"tensor/{name}": attrgetter(name)(model) for name in model._get_torch_save_params()[1]}
    for name, statistics in _statistics(model):
        for field in ("mean", "var", "count"):
            tensors[f"{name}/{field}"] = torch.as_tensor(getattr(statistics, field), dtype=torch.float64)
    return tensors


def _array(name: str, tensor: torch.Tensor) -> Array:
    try:
        array: Array = tensor.detach().cpu().numpy()
    except TypeError:
        raise UnsupportedError(f"{name} is {tensor.dtype}, which a checkpoint cannot hold; learn in float32") from None
    return array


def not_finite(model: BaseAlgorithm) -> str | None:
    """Return the name of the first parameter that is not finite; None if all are finite."""
    named = model.policy.named_parameters()
    return next((name for name, parameter in named if not torch.isfinite(parameter).all()), None)


def suspect(model: BaseAlgorithm) -> str:
    """Return the probable origin of a number that is not finite.

    It is the first such parameter. If there is none, it is the loss, with the parameter that has the largest numbers.
    """
    if (layer := not_finite(model)) is not None:
        return layer
    largest, _ = max(model.policy.named_parameters(), key=lambda named: float(named[1].detach().abs().max()))
    return f"the loss (the largest weights: {largest})"


def _check_finite(model: BaseAlgorithm, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # NaN propagates, and no second tensor of that size is allocated
        if not all(map(torch.isfinite, torch.aminmax(tensor.detach()))):
            raise QuarlError(
                f"{_readable(model, name)} holds NaN or infinity at update {model._n_updates}; nothing was saved, "
                "lower the learning rate"
            )


def _readable(model: BaseAlgorithm, name: str) -> str:
    """Return the layer's name, even if `name` belongs to an optimizer's state, which numbers the parameters."""
    root, _, rest = name.partition("/")
    optimizer = dict(_optimizers(model)).get(root)
    if optimizer is None:
        return rest
    index, _, key = rest.partition("/")
    parameter = [p for group in optimizer.param_groups for p in group["params"]][int(index)]
    names = [name for name, p in model.policy.named_parameters() if p is parameter]
    return f"the {key} in {root} of {names[0] if names else f'parameter {index}'}"


def _check_optimizer(name: str, optimizer: torch.optim.Optimizer, saved: Facts, arrays: Mapping[str, Array]) -> None:
    here = type(optimizer).__name__
    if saved["class"] != here:
        raise QuarlError(
            f"its {name} is {saved['class']} and this run's is {here}; resume with the first run's options"
        )
    groups = [len(group["params"]) for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = {int(index) for index in saved["numbers"]}
    for key, array in _below(name, arrays):
        indices.add(index := int(key.partition("/")[0]))
        if index < len(parameters) and array.shape not in ((), tuple(parameters[index].shape)):
            raise QuarlError(
                f"the state of its {name} has shape {array.shape} for parameter {index}, whose shape differs"
            )
    names = {key for key, _ in _below(name, arrays)}
    whole = {f"{index}/{entry}" for index, entry in product(indices, {key.partition("/")[2] for key in names})}
    if missing := sorted((whole | {*saved.get("tensors", ())}) - names):
        raise QuarlError(f"the state of its {name} lacks {missing[0]}; the checkpoint is damaged")
    if groups != [group["params"] for group in saved["groups"]] or not indices <= set(range(len(parameters))):
        raise QuarlError(f"its {name} steps other parameters than this run's; resume with the options of the first run")
    _groups(optimizer, saved)


def _groups(optimizer: torch.optim.Optimizer, saved: Facts) -> list[Facts]:
    """Return the optimizer's groups with the saved numbers, except those that this release of torch lacks."""
    groups: list[Facts] = optimizer.state_dict()["param_groups"]
    for group, numbers in zip(groups, saved["groups"], strict=True):
        group |= {key: _like(group[key], numbers[key]) for key in numbers.keys() & group.keys() - {"params"}}
    return groups


def _like(present: Any, saved: Any) -> Any:
    """Return the saved value if it is of the present one's kind: a number, a tuple of as many numbers, or a choice."""
    if isinstance(present, tuple):
        return tuple(_like(a, b) for a, b in zip(present, saved, strict=True))
    fits = isinstance(saved, int | float) or saved is None
    if not fits or (saved is None and isinstance(present, int | float) and not isinstance(present, bool)):
        raise ValueError(f"{saved!r} in the place of {present!r}")
    return saved


def _below(name: str, arrays: Mapping[str, T]) -> list[tuple[str, T]]:
    """Return (rest of the name, array) of those whose names start with `name/`."""
    return [(key[len(name) + 1 :], array) for key, array in arrays.items() if key.startswith(f"{name}/")]
