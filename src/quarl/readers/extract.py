"""Policies from live Stable-Baselines3 models, or from any nn.Module over the operator set."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import ActionWrapper, RewardWrapper, Wrapper, spaces
from gymnasium.envs.registration import registry
from gymnasium.wrappers import NormalizeObservation, TimeLimit
from torch import nn

from quarl.errors import QuarlError, UnsupportedError, note_once
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.inputs import Input
from quarl.policy.operators import OBSERVATION, Normalize, Op, Scale
from quarl.policy.trained import KEY, as_trained, is_prepared
from quarl.readers.aten import evaluating
from quarl.readers.fold import fold_renorm
from quarl.readers.normalizer import Statistics, from_arrays, from_wrapper, in_front
from quarl.readers.observation import front, normalizers, observe
from quarl.readers.plain_spaces import Box, action_head, as_pairs, from_live
from quarl.readers.sb3 import SBX
from quarl.readers.sb3_network import CLASSES, LAYOUTS, ON_POLICY, SAC, Parameters, bare, network
from quarl.readers.trace import remembered, trace
from quarl.readers.zoo import VEC_FRAME_STACK, samples_actions

ACTORS = ("actor_mean", "actor")
"""Parts of CleanRL's PPO agents that compute an action's values or scores."""
PROBES = 8
"""Number of random observations on which the model's own `predict` must agree with the extracted network."""
WATCHING = ("Monitor", "RecordEpisodeStatistics", "AtariWrapper", "NormalizeObservation")
"""Wrappers that need not be rebuilt: AtariWrapper only composes the wrappers inside it, and the policy normalizes
itself."""
PASSING = frozenset(
    (
        *("VecTransposeImage", "VecMonitor", "VecCheckNan", "VecVideoRecorder", "VecNormalize", *WATCHING),
        *("TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "Autoreset", "RecordVideo", "HumanRendering"),
        *("RenderCollection", "NormalizeReward", "NoopResetEnv", "FireResetEnv", "EpisodicLifeEnv"),
    )
)
"""Wrappers that pass observations and actions unchanged, or whose work the policy does itself."""
PACKAGES = ("stable_baselines3.common.atari_wrappers", "gymnasium.wrappers", "sb3_contrib.common.wrappers", "rl_zoo3.")
"""Modules whose wrappers an environment can be rebuilt with, given their names."""


def from_module(
    module: nn.Module | torch.export.ExportedProgram,
    observation_shape: tuple[int, ...],
    *,
    head: ActionHead,
    observation_dtype: Literal["float32", "uint8"] = "float32",
    inputs: tuple[Input, ...] = (),
    output: int | None = None,
    state: tuple[Any, ...] = (),
    normalize: Any = None,
) -> Policy:
    """Return the policy that `module` computes: one output row for each observation of `observation_shape`.

    Args:
        module: A network, or the ExportedProgram of one.
        observation_shape: Shape of one observation.
        head: Meaning of the output.
        observation_dtype: Number type of the observations.
        inputs: Parts of an observation that is a row of several.
        output: Index of the output among several returned tensors, as in `trace`.
        state: State at the start of an episode, as in `trace.remembered`.
        normalize: Statistics with which observations are normalized before the module, as in `normalizer.from_arrays`.

    Raises:
        QuarlError: The module has no forward, or the statistics belong to another observation.
        UnsupportedError: The module calls an operator outside the set; the error names the first one and its module.
    """
    module = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    if not isinstance(module, nn.Module):
        raise QuarlError(f"module is a {type(module).__name__}: give an nn.Module, or an ExportedProgram of one")
    if any(getattr(getattr(layer, "table", None), "active", False) for layer in module.modules()):
        raise UnsupportedError(
            "the module is of a model that quantization-aware training rounds: give the model to quarl.from_sb3"
        )
    if getattr(module.forward, "__func__", None) is nn.Module.forward:
        parts = [name for name in ACTORS if hasattr(module, name)] or [name for name, _ in module.named_children()]
        raise UnsupportedError(
            f"{type(module).__name__} has no forward, so its action is unknown: give the part that computes it, as in "
            f"quarl.from_module(agent.{parts[0] if parts else 'actor'}, ...), or write a forward"
        )
    state, shape = state if isinstance(state, tuple) else (state,), tuple(observation_shape)
    norm = None if normalize is None else from_arrays(normalize, shape)
    source = str(normalize) if isinstance(normalize, str | os.PathLike) else "" if norm is None else "given statistics"
    scores, fields, dtype = head.kind == "argmax", dict[str, Any](), observation_dtype if norm is None else "float32"
    if state or (list(module.buffers()) and not isinstance(module, torch.fx.GraphModule)):
        fields = remembered(module, shape, dtype, state, scores=scores, output=output)
    if not fields:
        ops = trace(module, [(OBSERVATION, shape)], dtype, scores=scores, output=output)
        ops, head = _into_head(ops, head)
        fields = {"observation_shape": shape, "ops": tuple(ops)}
    if norm is not None:
        fields["ops"] = in_front(norm, fields["ops"])
    return Policy(
        head=replace(head, width=fields.pop("width", 0)),
        **fields,
        observation_dtype=observation_dtype,
        inputs=inputs,
        provenance=Provenance(origin="module", statistics=source),
    )


def _into_head(ops: list[Op], head: ActionHead) -> tuple[list[Op], ActionHead]:
    """Return the network and its head; the head takes over a final tanh that is mapped exactly to the head's bounds."""
    last = len(ops) - 1
    while last > 0 and isinstance(ops[last], Scale | Normalize):
        last -= 1
    bounded = head.kind == "clip" and head.log_std is None and np.isfinite([head.low, head.high]).all()
    if last < 1 or not bounded or getattr(ops[last], "kind", "") != "tanh":
        return ops, head
    ends = np.stack([np.full(head.low.size, end, np.float32) for end in (-1, 1)])
    for op in ops[last + 1 :]:
        ends = op(ends) if isinstance(op, Normalize) else ends * op.factor  # type: ignore[attr-defined]
    if not np.allclose(ends, [head.low.reshape(-1), head.high.reshape(-1)], rtol=1e-6, atol=1e-6):
        return ops, head
    return ops[:last], replace(head, kind="tanh")


def from_model(
    model: Any, *, distribution: bool = False, say: Callable[[str], None] = note_once, trained: bool = False
) -> Policy:
    """Return the policy of a live model of Stable-Baselines3, sb3-contrib or D4PG, with its VecNormalize's statistics.

    Everything is copied, so training may continue. Operators have the same names as those from the zip reader.

    Args:
        model: The live model.
        distribution: Return the mean and log_std of SAC's Gaussian, so that its actions can be sampled. The greedy
            actions stay the same. Other algorithms have no network for log_std, so their policies do not change.
        say: Receives the reason if the model's environment cannot be described.
        trained: As in `sb3.read_zip`.

    Raises:
        UnsupportedError: The algorithm, a wrapper or an operator of the model is not supported.
    """
    algo = algorithm(model)
    policy = model.policy
    gaussian = distribution and algo == "sac"
    if gaussian and model.use_sde:
        raise UnsupportedError("the noise of gSDE depends on more than its actor's output; train with use_sde=False")
    observed = observe(from_live(policy.observation_space, "observation_space"), "observation_space")
    actions = from_live(policy.action_space, "action_space")
    actions = as_pairs(actions) if algo == "maskableppo" else actions
    actor = _Actor(policy, algo, gaussian=gaussian, is_array=observed.is_array, folded=True)
    scales = policy.normalize_images and not observed.is_array  # the module does it with arrays
    statistics, kept_in = _normalize(model)
    norms, home = normalizers(observed, statistics, Provenance(**environment(model, say)))
    ops, parts = front(observed, norms, scales=scales, apart=actor.reads_parts)
    actor.keys, dtype = tuple(parts), observed.fields.get("observation_dtype", "float32")
    weights = {bare(name): tensor.numpy(force=True).copy() for name, tensor in policy.state_dict().items()}
    # Names are relative to the policy, as in its state dict, not to the wrapper around it.
    layers, states = (
        network(Parameters(weights), ON_POLICY, parts, vars(policy), gsde=model.use_sde, memory=True)
        if algo == "ppo_lstm"
        else (trace(actor, parts.values(), dtype, named_by=policy), [])
    )
    ops = _read(ops, layers)
    if epsilons := {module.eps for module in policy.modules() if hasattr(module, "ra_mean")}:
        ops = fold_renorm(ops, Parameters(weights), *epsilons)
    log_std = None
    if LAYOUTS[algo] is ON_POLICY and isinstance(actions, Box) and not model.use_sde:
        log_std = policy.log_std.detach().to("cpu", torch.float32, copy=True).numpy()
    head = action_head(actions, "action_space", squashed=policy.squash_output, log_std=log_std)
    if gaussian:
        head = replace(head, kind="gaussian")
    extracted = Policy(
        **observed.read_by(ops, states),
        head=replace(head, width=actions.width if states else 0),
        provenance=replace(
            home,
            algo=algo,
            statistics=kept_in if norms else "",
            stochastic=samples_actions(algo, home.env_id),
            origin="sb3-live",
        ),
    )
    actor.folded = False
    _check_predict(model, actor, head, actions.width)
    if trained and is_prepared(weights):
        return as_trained(extracted, getattr(policy, KEY, None), weights, "the model")
    return extracted


def algorithm(model: Any) -> str:
    """Return the name of the algorithm of Stable-Baselines3 or of this package that the model is, or derives from."""
    algos = {name: algo for algo, name in CLASSES.items()}
    for cls in type(model).__mro__:
        theirs = cls.__module__.startswith(("stable_baselines3.", "sb3_contrib.", "quarl.algorithms."))
        if theirs and cls.__name__ in algos:
            return algos[cls.__name__]
    name = type(model).__name__
    if any(cls.__module__.startswith("sbx.") for cls in type(model).__mro__):
        raise UnsupportedError(f"{name} {SBX}")
    raise UnsupportedError(
        f"{name} is not a model of {', '.join(LAYOUTS)}; give its network to quarl.from_module, with an action head"
    )


class _Actor(nn.Module):
    """The deterministic path from a (normalized) observation to the network's output, before any tanh of the head.

    is_array: the actor receives the raw observation; otherwise prepared values in the order of `keys`. folded: leaves
    out the layers that `fold` moves into the weights.
    """

    def __init__(self, policy: Any, algo: str, *, gaussian: bool, is_array: bool, folded: bool) -> None:
        super().__init__()
        self.gaussian = gaussian
        self.policy = policy
        self.layout = LAYOUTS[algo]
        self.algo = algo
        self.is_array, self.folded = is_array, folded
        self.keys: tuple[str, ...] = ("",)
        self.state: tuple[np.ndarray, ...] | None = None

    @property
    def extractor(self) -> Any:
        """Return the module that computes features of a prepared observation."""
        return self.policy.get_submodule(self.layout.extractor)

    @property
    def reads_parts(self) -> bool:
        """Return whether the features extractor does more with a Dict than concatenate its parts."""
        if type(self.extractor).__name__ != "CombinedExtractor":
            return True
        return not all(isinstance(each, nn.Flatten) for each in self.extractor.extractors.values())

    def features(self, values: tuple[torch.Tensor, ...]) -> Any:
        """Return the features of the observation."""
        from stable_baselines3.common.policies import BaseModel  # here: modules without SB3 models need not load it

        if self.is_array:
            # The base class's method: the override warns and returns a pair if the extractor is not shared.
            return BaseModel.extract_features(self.policy, values[0], self.extractor)
        if self.keys != ("",):
            return self.extractor(dict(zip(self.keys, values, strict=True)))
        is_row = isinstance(self.policy.observation_space, spaces.Dict)  # side by side already
        return values[0] if is_row else self.extractor(values[0])

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        policy: Any = self.policy
        output: torch.Tensor
        if self.algo == "dqn":
            output = policy.q_net(*values) if self.is_array else policy.q_net.q_net(self.features(values))
        elif self.algo == "qrdqn":
            quantiles = policy.quantile_net.quantile_net(self.features(values))
            output = quantiles.view(-1, policy.n_quantiles, int(policy.action_space.n)).mean(dim=1)
        elif self.layout is SAC:  # its distribution code cannot be exported; this is its mode
            latent = self.features(values)
            for layer in policy.actor.latent_pi:
                latent = latent if self.folded and hasattr(layer, "ra_mean") else layer(latent)
            output = policy.actor.mu(latent)
            if self.gaussian:  # the clamp of log_std is the head's part
                output = torch.cat([output, policy.actor.log_std(latent)], dim=1)
        elif self.layout is ON_POLICY:
            latent = self.features(values)
            if self.state is not None:
                state = [torch.as_tensor(each).to(latent) for each in self.state]
                latent = policy.lstm_actor(latent[None], state)[0][0]
            output = policy.action_net(policy.mlp_extractor.forward_actor(latent))
        else:
            net = policy.action_net if self.algo == "ars" else policy.actor.mu
            output = self.features(values)
            for layer in net[: len(net) - policy.squash_output]:  # the last Tanh is the head's part
                output = layer(output)
        return output


def _read(ops: list[Op], others: list[Op]) -> list[Op]:
    """Return both lists without the `ops` that nothing reads: an extractor may ignore parts of a Dict."""
    for op in reversed(ops):
        if any(op.name in other.inputs for other in others):
            others = [op, *others]
    return others


def _probes(space: Any, rng: np.random.Generator) -> Any:
    """Return PROBES random observations of a space."""
    if isinstance(space, spaces.Dict):
        return {key: _probes(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        shape = (PROBES, *space.shape)
        images = space.dtype == np.uint8
        return rng.integers(0, 256, shape, np.uint8) if images else rng.standard_normal(shape).astype(np.float32)
    others = copy.deepcopy(space)  # sampling changes it
    others.seed(0)
    return np.stack([others.sample() for _ in range(PROBES)])


def _check_predict(model: Any, actor: _Actor, head: ActionHead, width: int) -> None:
    """Refuse a policy whose class does more than its networks compute: a subclass may override any method."""
    from stable_baselines3.common.preprocessing import preprocess_obs

    policy = model.policy
    probes = _probes(policy.observation_space, rng := np.random.default_rng(0))
    if actor.algo == "ppo_lstm":
        actor.state = (*rng.uniform(-1, 1, (2, policy.lstm_actor.num_layers, PROBES, policy.lstm_actor.hidden_size)),)
    with evaluating(policy), torch.no_grad():
        expected, _ = policy.predict(probes, actor.state, deterministic=True)
        values: Any = policy.obs_to_tensor(probes)[0]
        if not actor.is_array:
            values = preprocess_obs(values, policy.observation_space, policy.normalize_images)
            parts = values if isinstance(values, dict) else {"": values}
            rows = torch.cat([part.flatten(1) for part in parts.values()], dim=1)
            values = rows if actor.keys == ("",) else tuple(parts[key] for key in actor.keys)
        output = actor(*(values if isinstance(values, tuple) else (values,))).cpu().numpy()
    if head.is_discrete and output.shape[1:] != (width,):
        raise QuarlError(f"the network scores {output.shape[1:]} actions, the action space has {width}")
    if not np.allclose(head(output), expected, rtol=1e-4, atol=1e-4):
        raise UnsupportedError(
            f"{type(model.policy).__name__}.predict does not return the actions that its networks compute; "
            "give the module that computes them to quarl.from_module, with an action head"
        )


def _around(env: Any) -> Iterator[Any]:
    """Yield the model's vectorized environment and those inside it, outermost first.

    It stops at environments in other processes.
    """
    from stable_baselines3.common.vec_env import VecEnv  # here: modules without SB3 models need not load it

    while isinstance(env, VecEnv | Wrapper):
        yield env
        env = vars(env).get("venv") or vars(env).get("env") or next(iter(vars(env).get("envs", ())), None)


def _passes(env: Any) -> bool:
    """Return True unless `env` is a wrapper that changes observations or actions in a way that the policy does not."""
    from stable_baselines3.common.vec_env import VecEnvWrapper

    kind = type(env)
    theirs = kind.__module__.startswith(("gymnasium.", "stable_baselines3.", "rl_zoo3.gym_patches"))
    known = theirs and kind.__name__.removeprefix("Patched") in PASSING  # RL Zoo replaces gymnasium's TimeLimit
    return known or isinstance(env, RewardWrapper) or not isinstance(env, VecEnvWrapper | Wrapper)


def _normalize(model: Any) -> tuple[Statistics | None, str]:
    """Return the statistics that normalize the model's observations, and their origin.

    Raises UnsupportedError that names the wrappers if the policy observes anything but the output of the one that
    normalizes.
    """
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    around = list(_around(model.get_env()))
    if around and sum(around[0].env_is_wrapped(NormalizeObservation)) > sum(
        isinstance(env, NormalizeObservation) for env in around
    ):
        raise UnsupportedError("each environment has a NormalizeObservation with its own statistics: use VecNormalize")
    changing = [
        (env, statistics)
        for env in around
        for statistics in [from_wrapper(env) if isinstance(env, VecNormalize | NormalizeObservation) else None]
        if statistics is not None or not (_passes(env) or isinstance(env, ActionWrapper | VecFrameStack))
    ]
    if all(statistics is None for _, statistics in changing):
        return None, ""
    (last, statistics), *others = changing
    if statistics is None or not _passes(last) or any(each is not None for _, each in others):
        raise UnsupportedError(
            f"observations pass {' around '.join(type(env).__name__ for env, _ in changing)}: a policy has the "
            "statistics of one VecNormalize or NormalizeObservation, and no wrapper outside may change observations"
        )
    return statistics, f"the model's {type(last).__name__}"


def environment(model: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the Provenance fields of the model's environment: id, arguments, wrappers and a time limit of its own.

    The registered time limit is left out. The result is empty if the model has no environment, or one that cannot be
    rebuilt. In that case `say` receives the reason and the wrappers that are not part of the policy.
    """
    try:
        return {} if model.get_env() is None else _described(model.get_env())
    except ValueError as error:
        changing = ", ".join(type(env).__name__ for env in _around(model.get_env()) if not _passes(env))
        say(
            f"the policy does not record its environment: {error}. Pass it as env, name an equal one with "
            "env_id, or register it with Gymnasium"
            f"{changing and f'; {changing} is not part of the policy'}"
        )
        return {}


def _described(env: Any) -> dict[str, Any]:
    """Return the fields for `environment`; raise ValueError with the reason if there are none."""
    from stable_baselines3.common import vec_env as sb3  # here: modules without SB3 models need not load it

    spec, stacks = env.get_attr("spec", [0])[0], list[tuple[str, dict[str, Any]]]()
    while isinstance(env, sb3.VecEnvWrapper):
        if type(env) is sb3.VecFrameStack:
            order = "first" if env.stacked_obs.channels_first else "last"
            stacks.insert(0, (VEC_FRAME_STACK, {"n_stack": env.stacked_obs.n_stack, "channels_order": order}))
        elif not _passes(env):
            raise ValueError(f"{type(env).__name__} is around it")
        env = env.venv
    registered = registry.get(spec.id) if spec is not None else None
    if spec is None or registered is None:
        raise ValueError("it is not registered with Gymnasium")
    wrappers = []
    for added in spec.additional_wrappers[len(registered.additional_wrappers) :]:
        module, _, name = added.entry_point.partition(":")
        if module.startswith("quarl."):
            return {}  # training by this package records its environment itself
        if name not in WATCHING:
            if not module.startswith(PACKAGES):
                raise ValueError(f"{name} of {module} is around it")
            arguments = (
                _arguments(env, getattr(importlib.import_module(module), name))
                if added.kwargs is None
                else added.kwargs
            )
            wrappers.append((f"{module}.{name}", _plain(arguments, name)))
    kwargs = {k: v for k, v in _plain(spec.kwargs, spec.id).items() if k != "render_mode"}
    inside = (each._max_episode_steps for each in _around(env) if isinstance(each, TimeLimit))
    limits = inside if isinstance(env, sb3.DummyVecEnv) else [spec.max_episode_steps]
    limit = min(limits, default=None)
    if limit is None and registered.max_episode_steps is not None:
        raise ValueError("its time limit was removed")
    return {
        "env_id": spec.id,
        "env_kwargs": {k: v for k, v in kwargs.items() if k not in registered.kwargs or registered.kwargs[k] != v},
        "wrappers": (*wrappers, *stacks),
        "max_episode_steps": None if limit == registered.max_episode_steps else limit,
    }


def _arguments(env: Any, cls: type[Any]) -> dict[str, Any]:
    """Return the arguments of a wrapper that stores each under its name, as Stable-Baselines3's and RL Zoo's do."""
    names = list(inspect.signature(cls).parameters)[1:]
    kept = {name: held for name in names for held in (name, f"_{name}") if env.has_attr(held)}
    if missing := [name for name in names if name not in kept]:
        raise ValueError(f"{cls.__name__} does not store its argument {missing[0]}")
    return {name: env.get_attr(held, [0])[0] for name, held in kept.items()}


def _plain(arguments: Mapping[str, Any], of: str) -> dict[str, Any]:
    for name, value in arguments.items():
        try:
            json.dumps(value)
        except TypeError:
            raise ValueError(f"the argument {name} of {of} is not JSON: use numbers, text, lists or dicts") from None
    return dict(arguments)
