"""Options of RL Zoo's scripts and of Stable-Baselines3, and what says the same here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

HYPERPARAMETERS = """
learning_rate batch_size buffer_size learning_starts n_steps n_epochs gamma gae_lambda clip_range clip_range_vf ent_coef
vf_coef max_grad_norm normalize_advantage target_kl tau train_freq gradient_steps target_update_interval policy v_min
exploration_fraction exploration_initial_eps exploration_final_eps optimize_memory_usage policy_delay policy_kwargs
target_policy_noise target_noise_clip target_entropy use_sde sde_sample_freq use_sde_at_warmup use_rms_prop rms_prop_eps
replay_buffer_kwargs stats_window_size normalize noise_type v_max
"""
"""Of Stable-Baselines3's constructors and the zoo's configurations: what --params takes."""
SIDE_BY_SIDE = "drop it: episodes are played side by side"
SEARCH = "drop it: hyper-parameters are not searched for here"
WHOLE, UNTRAINED = "--episodes N, for episodes are played whole", "drop it: nothing is trained here"
COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    name: tuple(said)
    for names, *said in (
        ("tensorboard-log tb wandb-project-name wandb-entity wandb-group wandb-tags", "--track tensorboard", UNTRAINED),
        ("gym-packages", "--env MODULE:ID, whose module registers the ID"),
        ("num-threads", "--threads", "--learner-threads", "--workers"),
        ("n-envs", "--envs-per-actor", "--batch", "--params n_envs:VALUE", SIDE_BY_SIDE),
        ("n-eval-envs", SIDE_BY_SIDE),
        ("n-timesteps total-timesteps", "--n-timesteps", WHOLE),
        ("n-eval-episodes eval-episodes", "--eval-episodes", "--episodes"),
        ("algo", "--folder FOLDER with MODEL in two words, ALGO ENV"),
        ("folder log-folder log-dir output-folder", "--folder", "--output"),
        ("trained-agent exp-id load-best load-checkpoint load-last-checkpoint", "MODEL, the path of its file or run"),
        ("yaml-file conf-file conf", "--params NAME:VALUE ..., of all that the file says"),
        ("hyperparams params", "--params", UNTRAINED),
        ("eval-env-kwargs", "--env-kwargs"),
        ("env-wrapper", "--wrapper"),
        ("noise-std", "--sigma", "--params noise_std:VALUE"),
        ("save-replay-buffer truncate-last-trajectory", "--resume, for checkpoints hold replay", UNTRAINED),
        ("verbose progress P log-interval no-render gif uuid no-optim-plots", "drop it: there is no such choice here"),
        ("optimize-hyperparameters optimize n-trials max-total-trials sampler pruner storage n-startup-trials", SEARCH),
        ("n-evaluations study-name trial-id optimization-log-path", SEARCH),
        ("n-jobs", "--jobs", SEARCH),
        ("reward-log", "--json FILE"),
        ("norm-reward", "drop it: returns are sums of raw rewards"),
        ("custom-objects", "drop it: nothing in a file is executed"),
        ("device", "drop it: engines run on the processor"),
        ("deterministic stochastic", "drop it: the zoo's convention for the agent holds"),
    )
    for name in names.split()
}
"""Its name there -> what to do: the first that names no option, or one that the verb has."""


def counterpart(option: str, value: str, known: Collection[str]) -> str:
    """What ends the message of an option that a verb with the options `known` has not, or nothing.

    value: what stands behind the option.
    """
    name = option.lstrip("-").replace("_", "-")
    parameter = name.replace("-", "_")
    said = (
        f"--{name}",
        *COUNTERPARTS.get(name, (f"--params {parameter}:VALUE",) * (parameter in HYPERPARAMETERS.split())),
    )
    fitting = (words for words in said if not words.startswith("--") or words.split()[0].strip(",") in known)
    words = next(fitting, "").replace(f"{parameter}:VALUE", f"{parameter}:{value or 'VALUE'}")
    return f"; {'' if words.startswith('drop') else 'use '}{words}" if words else ""
