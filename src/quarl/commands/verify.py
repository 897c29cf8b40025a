"""`quarl verify`: checks that exported files are unchanged and act as they should."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from quarl.commands import model, terminal
from quarl.config import VerifyConfig
from quarl.errors import QuarlError
from quarl.export.c.proof import prove, source_of
from quarl.export.equal import DIFFERS, NOT_PROVEN, VerifyRow
from quarl.export.verification import verify
from quarl.readers import find


def run(config: VerifyConfig) -> int:
    """Print a row for each check; raise QuarlError if one fails.

    Returns:
        The exit code, which is 1 if a call of C is not proven to stay in its range.
    """
    path = Path(config.model)
    recorded: Any = config.observations and partial(model.observations, config.observations)
    proofs = prove(source_of(path), config.calls) if config.prove else ()
    checks = [
        *verify(
            path,
            config.runtime,
            agent=find.opened(config.agent).path if config.agent else None,
            episodes=config.episodes,
            env_id=config.env,
            margin_pct=config.margin,
            seed=config.seed,
            edited=config.edited,
            recorded=recorded,
            envelope=config.envelope,
        ),
        *proofs,
    ]
    rows = [each for each in checks if isinstance(each, VerifyRow)]
    said = [each for each in checks if isinstance(each, str)]
    if any(row.runtime == "openvino" for row in rows):
        said.append("openvino computes in float32 here, because of its hint EXECUTION_MODE_HINT=ACCURACY: set it, too")
    code = terminal.tell(config, VerifyRow, rows, f"{path}", "", *said, model=str(path), seed=config.seed)
    if unproven := [row for row in rows if row.result == NOT_PROVEN]:
        terminal.complain(f"{path}, {unproven[0].check}: {unproven[0].detail}")
        return 1
    for row in rows:
        if row.result == DIFFERS:
            raise QuarlError(f"{path} in {row.runtime}, {row.check}: {row.detail}")
    return code
