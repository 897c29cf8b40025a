"""What `make docs-test` cuts, leaves out, puts there beforehand and looks for afterwards."""

from __future__ import annotations

CUTS = {
    "ptq": {"--episodes": 3},
    "distill": {"--episodes": 3, "--rounds": 1, "--updates": 20, "--states": 100, "--validation": 3},
    "eval": {"--episodes": 3},
    "compare": {"--episodes": 3},
    "export": {"--episodes": 3},
    "verify": {"--episodes": 3},
    "play": {"--episodes": 1, "--max-episode-steps": 60},
    "train": {"-n": 2000, "--eval-episodes": 1},
    "sweep": {"-n": 2000, "--episodes": 2, "--seeds": 1},
    "robust": {"--episodes": 10},
    "actorq": {"-n": 1500, "--eval-episodes": 1},
}
"""Verb: options, and the largest value that each has; those that a command does not give are added."""
ADDED = {"actorq": ["--params", "learning_starts:500"]}
"""Verb: what its short run needs besides, where the command does not say it and does not go on."""
CUTS_OF_GIVEN = {"--quant-delay": 1000, "--eval-freq": 1000, "--updates": 100}
"""Of every verb, where a command gives them."""
CUTS_OF_RESUMED = {"-n": 4000}
"""In their place where a run goes on: it has to have more to do than the one before."""
SPELLINGS = {"--n-timesteps": "-n"}
CUTS_IN_TEXT = {
    r"(?<=\.learn\()[\d_]+|(?<=n_timesteps: )[\d_]+|(?<=n_timesteps=)[\d_]+": 4000,
    r"(?<=QuantDelay\()[\d_]+(?!\.)": 1000,
    r"(?<=episodes[=:])[\d_]+|(?<=episodes: )[\d_]+": 3,
}
"""The same in Python and in studies: what matches is at most this."""

NOT_RUN = {
    r"pip |python -m (pip|build)": "installs, or asks a package index",
    r"python\S* -m venv |source |\. |cd ": "makes an environment, or changes the reader's shell",
    r"git |ssh ": "asks a server",
    r"quarl cluster |.*--cluster (auto|\d)": "needs other machines, and has no end",
    r"make ": "an installation, a measurement or a campaign; another test knows that its target exists",
    r"python (benchmarks|docs)/": "reads what hours of measurements left",
    r"tensorboard ": "a server without an end",
    r"quarl demo$": "the quickstart runs it already",
    r".*\bhub:": "asks the Hugging Face hub",
    r".*[\[\]…]|.*\.\.\.|.* (ALGO|MODEL|ENV|FILE|NAME)\b": "shows a form, not a command",
}
"""Beginning of a command (a regular expression): why it is not run."""

WRITES = {
    "demo": ("rows.json", "rows.csv", "report.html", "CartPole-v1.quarl"),
    "ptq": ("rows.json", "rows.csv", "report.html", "choice.png", "sweetspot.png"),
    "distill": ("rows.json", "report.html", "curve.png"),
    "compare": ("comparison.json", "comparison.png"),
    "inspect": ("weights.png", "weights.pdf", "output.txt"),
    "actorq": ("model.zip", "metrics.jsonl", "evaluations.jsonl", "policy-fp32.safetensors", "report.html"),
    "sweep": ("study.yml", "rows.json"),
    "robust": ("study.yml", "rows.json", "report.html"),
    "study run": ("study.sqlite",),
    "study report": ("report.html",),
}
"""Verb: files in its output folder."""

GOALS = {
    "docs/guide/ptq.md": "out/rows.json",
    "docs/guide/qat.md": "cartpole.zip",
    "docs/guide/actorq.md": "runs/cartpole/model.zip",
    "docs/guide/export.md": "cartpole/policy.tflite",
    "docs/guide/study.md": "study/study.sqlite",
}
"""Page: what its first block that writes, run in an empty folder, has written."""

MADE = {r"quarl-demo/[\w.-]+": ("quarl-demo", ["quarl", "demo"])}
"""Folder that an installation of a page has made, and the command that makes it; the pattern is that of PLACED."""
WILD = "../agents-wild/onnx"
PLACED = {
    r"model\.zip": ("model.zip", "sb3/dqn/CartPole-v1_1/CartPole-v1.zip"),
    r"agent\.zip": ("agent.zip", "sb3/dqn/CartPole-v1_1/CartPole-v1.zip"),
    r"logs/dqn/CartPole-v1_1|dqn CartPole-v1 -f logs": ("logs/dqn/CartPole-v1_1", "sb3/dqn/CartPole-v1_1"),
    r"rl-trained-agents": ("rl-trained-agents", "sb3"),
    r"exported/policy\.onnx|robot\.onnx|g1\S*": ("exported", f"{WILD}/mjlab-g1-velocity"),
    r"player\.onnx": ("player.onnx", f"{WILD}/godot-player.onnx"),
    r"walker\.onnx": ("walker.onnx", f"{WILD}/mlagents-walker-ripple.onnx"),
}
"""What a page takes for the reader's, where none of its commands makes it: path, and where it lies among the agents."""
