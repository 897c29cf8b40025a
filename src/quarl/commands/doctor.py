"""`quarl doctor`: what can go wrong on this machine."""

from __future__ import annotations

from quarl import doctor
from quarl.commands import terminal
from quarl.config import DoctorConfig
from quarl.errors import QuarlError


def run(config: DoctorConfig) -> None:
    """Prints one row a check; raises QuarlError where one failed, after the table."""
    document = terminal.tell(config, doctor.Check, doctor.examine(), "This machine")
    failed = [row["check"] for row in document["rows"] if not row["ok"]]
    if failed:
        raise QuarlError(f"{len(failed)} checks failed: {', '.join(failed)}; the table's last column says what to do")
