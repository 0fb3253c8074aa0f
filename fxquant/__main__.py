"""``python -m fxquant``."""

from __future__ import annotations

import sys

from fxquant.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
