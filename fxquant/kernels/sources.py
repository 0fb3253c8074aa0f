"""Which C++ sources a native library was built from: a mark inside it, by which one that is out of date is known.

``setup.py`` reads this file by its path, where neither fxquant nor torch may be: it imports the standard library alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

MARK = b"fxquant-sources:"
"""The marker that comes before the fingerprint in a library."""
DIGITS = 32
"""Hexadecimal digits of a fingerprint."""

_OTHER = {"cpu": "cuda", "cuda": "cpu"}
_SUFFIXES = (".h", ".cpp", ".cu")


def fingerprint(csrc: Path, device: str) -> str:
    """Hash of the names and texts of all files that the library of a device (``cpu`` or ``cuda``) may be made from."""
    digest = hashlib.sha256()
    folder = os.path.join(csrc, "")
    for path in sorted(_files(folder, skipped=_OTHER[device])):
        with open(path, "rb", buffering=0) as file:
            digest.update(b"%b\0%b\0" % (path[len(folder) :].encode(), file.read()))
    return digest.hexdigest()[:DIGITS]


def fingerprint_in(library: Path) -> str:
    """Return the fingerprint of the sources that a library was built from; empty if it has none."""
    data = library.read_bytes()
    start = data.find(MARK)
    return data[start + len(MARK) :][:DIGITS].decode("ascii", "replace") if start >= 0 else ""


def stamp(csrc: Path, device: str) -> str:
    """Return a C++ source that puts the fingerprint into the library that it is linked into."""
    text = f"{MARK.decode()}{fingerprint(csrc, device)}"
    # exported, so that no linker drops what nobody reads
    return f"""\
extern "C" {{
extern __attribute__((visibility("default"))) const char fxquant_{device}_sources[];
const char fxquant_{device}_sources[] = "{text}";
}}
"""


def _files(folder: str, skipped: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != skipped:
                yield from _files(entry.path, skipped)
        elif entry.name.endswith(_SUFFIXES):
            yield entry.path
