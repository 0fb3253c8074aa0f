"""What builds the native libraries for the package that is running, as a command line that can be pasted."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

PIP = "python -m pip install --no-build-isolation"


def build_command(package: Path) -> str:
    """Return the command that builds the libraries, once there is a compiler.

    Args:
        package: Folder of the package: in a clone it is installed from there; else from where it was installed.
    """
    clone = package.resolve().parent
    if (clone / "setup.py").is_file() and (clone / "pyproject.toml").is_file():
        return f"{PIP} -e {shlex.quote(str(clone))}"
    source = _installed_from()
    return f"{PIP} --no-deps --force-reinstall {shlex.quote(source) if source else '.   # in a clone of fxquant'}"


def _installed_from() -> str:
    """Return the folder that pip installed this package from; empty where it is gone, or was none."""
    try:
        text = distribution("fxquant").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    url = urlparse(str(json.loads(text or "{}").get("url", "")))
    folder = unquote(url.path) if url.scheme == "file" else ""
    return folder if folder and (Path(folder) / "setup.py").is_file() else ""
