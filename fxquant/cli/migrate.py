"""``python -m fxquant migrate``: which names of torch.ao in a file move to ``fxquant.compat``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fxquant.compat.migration_report import read
from fxquant.errors import InputError


def run(options: argparse.Namespace) -> int:
    for name in options.file:
        try:
            report = read(Path(name).read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            raise InputError("the file is no Python source", at=name, got=str(error)) from error
        print(f"{name}\n{report}")
    return 0
