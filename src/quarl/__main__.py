"""`python -m quarl` is `quarl`."""

from __future__ import annotations

import sys

from quarl.cli import main

if __name__ == "__main__":  # started processes import this module again
    sys.exit(main())
