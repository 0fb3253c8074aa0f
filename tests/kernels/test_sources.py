"""The fingerprint of the C++ sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.kernels.sources import DIGITS, fingerprint, fingerprint_in, stamp


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    shared = ("cpu/add.cpp", "cpu/loops/add.h", "cuda/add.cu", "math/affine.h")
    for name in (*shared, "conv/cpu/conv.h", "conv/cuda/conv.h"):
        (tmp_path / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / name).write_text(name)
    return tmp_path / "csrc"


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("cpu/loops/add.h", {"cpu"}),
        ("cuda/add.cu", {"cuda"}),
        ("math/affine.h", {"cpu", "cuda"}),
        ("cpu/new.cpp", {"cpu"}),
        ("conv/cpu/conv.h", {"cpu"}),
        ("conv/cuda/conv.h", {"cuda"}),
        ("conv/conv.h", {"cpu", "cuda"}),
        ("math/affine.h.orig", set()),
    ],
)
def test_it_changes_with_what_the_library_is_made_from(csrc: Path, name: str, devices: set[str]) -> None:
    before = {device: fingerprint(csrc, device) for device in ("cpu", "cuda")}
    (csrc / name).write_text("changed")
    assert {device for device in before if fingerprint(csrc, device) != before[device]} == devices


def test_a_renamed_file_is_another_source(csrc: Path) -> None:
    before = fingerprint(csrc, "cpu")
    (csrc / "cpu" / "add.cpp").rename(csrc / "cpu" / "mul.cpp")
    assert fingerprint(csrc, "cpu") != before


def test_it_is_found_in_a_library(csrc: Path, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"ELF\0" + stamp(csrc, "cpu").encode() + b"\0\0")
    assert fingerprint_in(path) == fingerprint(csrc, "cpu")
    assert len(fingerprint_in(path)) == DIGITS
    path.write_bytes(b"")
    assert fingerprint_in(path) == ""
