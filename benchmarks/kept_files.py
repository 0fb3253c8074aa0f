"""Files that contestants make once, and that later runs read: quantizing takes minutes, which no timing needs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = "KEPT_FILES"
"""Variable of the environment that names the folder. Unset: files end with the process that made them."""


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """The file of that name, which is made if it is missing.

    Args:
        name: What ``make`` calls the file.
        make: Writes it into the folder that it is given, and what belongs to it beside it.
    """
    folder = Path(os.environ.get(FOLDER) or _folder_of_this_process())
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            make(Path(unfinished))
            # The file itself comes last: where it is, all is.
            for part in sorted(Path(unfinished).iterdir(), key=lambda part: part.name == name):
                part.replace(folder / part.name)
    return path


def _folder_of_this_process() -> str:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
