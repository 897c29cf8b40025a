r"""`quarl demo`: run `quarl ptq` on a trained agent that is shipped with QuaRL.

The agent is a PPO on CartPole-v1. It was trained, in less than a minute on two cores, and saved by

    quarl train --algo ppo --env CartPole-v1 -n 50000 --eval-freq 0 \ --params
        policy_kwargs:"dict(net_arch=dict(pi=(256,256),vf=(64,64)))"
    python -c "import quarl; quarl.load('logs/ppo/CartPole-v1_1').save('CartPole-v1.quarl')"
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from pathlib import Path

from quarl.commands import ptq, terminal
from quarl.config import DemoConfig, PtqConfig
from quarl.files import staged, write_bytes

AGENT = Path(__file__).with_name("CartPole-v1.quarl")
TRAINED = (
    "quarl train --algo ppo --env CartPole-v1 -n 50000 --eval-freq 0 --params "
    'policy_kwargs:"dict(net_arch=dict(pi=(256,256),vf=(64,64)))"'
)
"""The command that trained it."""
BITS = ("fp32", "fp16", "8", "4", "3", "2")
SCHEMES = ("default", "naive")
DISCLAIMER = (
    "This table shows how QuaRL measures. It is not evidence for a precision or a scheme:",
    "one agent on one easy task, shipped because its choices are clear-cut.",
    "Another agent may lose more at 8 bits than this one at 4. Measure yours: quarl ptq model.zip --env ENV",
)


def run(config: DemoConfig) -> int:
    """Copy the agent, quantize it under two schemes, print the table and its limits; return the exit code."""
    path = config.output / AGENT.name
    with staged(config.output) as folder:
        write_bytes(AGENT.read_bytes(), folder / path.name)
    terminal.say(f"agent: {path}, trained by {TRAINED}")
    code = ptq.run(
        PtqConfig(
            model=(str(path),), bits=BITS, scheme=SCHEMES, seed=config.seed, output=config.output, json=config.json
        )
    )
    terminal.say("", *DISCLAIMER)
    if sys.prefix not in (sys.base_prefix, os.environ.get("VIRTUAL_ENV")):  # `make demo` does not activate it
        script = f"{sysconfig.get_path('scripts')}/activate"
        terminal.say(f"next: . {shlex.quote(min(script, os.path.relpath(script), key=len))}")
    return code
