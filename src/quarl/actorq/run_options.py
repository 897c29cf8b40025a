"""The options of a new or resumed run: explicit ones over the run's own, or over RL Zoo's tuned hyper-parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quarl import literals
from quarl.actorq.build import CRITIC
from quarl.actorq.environments import environment_of
from quarl.algorithms import tuned
from quarl.algorithms.learners import learner_class
from quarl.config import ActorQConfig
from quarl.config.actorq import GIVEN_ONCE
from quarl.config.learner_options import completed
from quarl.envs.environment import Environment, described
from quarl.envs.options import OF_ENVIRONMENT
from quarl.errors import QuarlError
from quarl.files import read_rows
from quarl.readers.zoo import PREPROCESSING
from quarl.runs.folder import RunFolder

OWN = {"use_sde", "sde_sample_freq", "replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage"}
"""Stable-Baselines3 learner arguments that do not apply to actors."""


def begun(config: ActorQConfig, say: Callable[[str], None]) -> ActorQConfig:
    """Return the options of the run: explicit ones, completed by its saved ones if it is resumed, else by tuned ones.

    Raises QuarlError if the folder already holds a run: a typo must not overwrite weeks of training.
    """
    folder = RunFolder(config.output)
    checkpoints, kept = folder.checkpoints(), folder.options.is_file()
    if checkpoints and not config.resume:
        raise QuarlError(f"{config.output} already holds a run ({checkpoints[-1]}): use --resume, or another folder")
    if not checkpoints and folder.agent.exists():
        raise QuarlError(f"{config.output} already holds {folder.agent.name} of something else: use another folder")
    if config.resume and not config.output.is_dir():
        raise QuarlError(f"no checkpoint in {config.output}, which does not exist; start without --resume")
    if config.resume and kept:
        config = completed(config, folder.read_args(), folder.options)
        trained = max((row["timesteps"] for row in read_rows(folder.metrics)), default=0)
        if trained >= config.steps + config.num_envs:  # a run ends with fewer steps too many
            raise QuarlError(
                f"{config.output} is trained beyond -n {config.steps} ({trained:,} steps); "
                f"resume it with more, as in -n {2 * trained}"
            )
    if not checkpoints:
        if config.resume:
            say(f"{config.output} holds no checkpoint yet: the run starts from the beginning")
        config = adopt(config, say)
    elif kept:
        say(f"resuming to {config.steps:,} environment steps, with the options in {folder.options}")
    else:
        say(f"{folder.options} is missing: the run resumes with the options of this command")
    # Fix the delay in steps: a longer run does not move it.
    return replace(config, resume=bool(checkpoints), n_timesteps=config.steps, quant_delay=config.delay(config.steps))


def adopt(config: ActorQConfig, say: Callable[[str], None]) -> ActorQConfig:
    """Return `config` with the tuned hyper-parameters of its task; explicit options override them.

    With n_envs environments that make train_freq steps each between two rounds of updates, actors make n_envs *
    train_freq steps in all. noise_std becomes the largest of the actors' sigmas. One line reports the origin of the
    hyper-parameters, another one the changes for actors.
    """
    environment = Environment.typed_by_user(config.env)
    env_id = environment.env_id
    if atari := environment.is_atari:
        say(f"Atari game: {described(environment_of(config))}")
    if config.preset != "tuned":
        return config
    published = tuned.read(config.algo, env_id, atari=atari)
    say(f"hyper-parameters: {published.origin}")
    # Take the tuned values, without those that actors apply anyway.
    given, preprocessing = config.hyperparameters(), PREPROCESSING if atari else ()
    left = {name: value for name, value in published.written.items() if value is not None and name not in preprocessing}
    # Replace values for a good last policy: actorq keeps the last policy, not the best.
    without = {name for name in GIVEN_ONCE if getattr(config, name) is not None} | given.keys()
    lasting = {n: value for n, value in tuned.for_last_policy(config.algo, env_id).items() if n not in without}
    left |= lasting
    said = [f"{name} {value}, for a good last policy" for name, value in lasting.items()]
    # Move values that are options of this command.
    options: dict[str, Any] = {"preset": "none"}
    num_envs, kind, std = left.pop("n_envs", 1), left.pop("noise_type", None), left.pop("noise_std", None)
    steps, _policy = left.pop("n_timesteps"), left.pop("policy", None)
    if config.n_timesteps is None:
        options["n_timesteps"] = int(steps)
    if normalize := left.pop("normalize", False):
        options["normalize"] = True
        said += [] if normalize is True else ["normalize is --normalize (observations and rewards)"]
    explores = config.sigma != ActorQConfig.sigma or "sigma" in config.typed or config.algo == "sac"
    if kind and published.is_tuned and not explores:
        options["sigma"] = float(std)
        said.append(f"{kind} noise is --sigma {std:g}, drawn at every step")
    # Apply the ratio to all environments together.
    if num_envs > 1 and isinstance(left.get("train_freq"), int):
        left["train_freq"] *= num_envs
        said.append(f"train_freq of {num_envs} environments is {left['train_freq']}")
    if config.samples_per_insert is not None:
        without |= {"train_freq", "gradient_steps"}
    # Drop explicit layers, and arguments that do not apply to actors.
    if (config.net_arch is not None or CRITIC in given) and "policy_kwargs" in left:
        kwargs = literals.mapping(left["policy_kwargs"], names=True)
        left["policy_kwargs"] = literals.spell({name: value for name, value in kwargs.items() if name != "net_arch"})
    parameters = {*inspect.signature(learner_class(config.algo).__init__).parameters, *OF_ENVIRONMENT} - OWN
    if dropped := [name for name in left if name not in parameters]:
        said.append(f"{', '.join(dropped)} left out")
    if said:
        say(f"for actors, {'; '.join(said)}")
    # Put the rest in front of the explicit --params.
    words = (
        f"{name}:{value if isinstance(value, str) else literals.spell(value)}"
        for name, value in left.items()
        if name in parameters - without
    )
    adopted = replace(config, params=(*words, *config.params), **options)
    adopted.check()
    return adopted
