"""``make wheel``: what is linked so runs with an older glibc and libstdc++, and what would not is found."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import wheels
from scripts.wheels import PROCESSORS, Audit, Processor

HERE = next((each for each in PROCESSORS if each.name == platform.machine()), None)
CXX = HERE.compiler() if HERE else None
X86, ARM = PROCESSORS
needs_tools = pytest.mark.skipif(CXX is None or not shutil.which("objdump"), reason="no compiler, or no objdump")

NEWER = """\
#include <dlfcn.h>
#include <memory>
#include <sstream>
#include <string>

extern "C" __attribute__((visibility("default"))) const char* fxquant_text(int length) {
  static std::string text;
  std::shared_ptr<int[]> numbers(new int[length]);
  std::ostringstream out;
  std::stringstream both;
  both << dlsym(dlopen(nullptr, RTLD_NOW), "getpid");
  out << length << (both.str().empty() ? "" : "!");
  text = out.str();
  return text.c_str();
}
"""
"""Uses each function that the compiler here would ask of a newer library."""


def versions(library: Path) -> set[tuple[str, tuple[int, ...]]]:
    text = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"\*UND\*.*?\(?((?:GLIBC|GLIBCXX|CXXABI))_([\d.]+)", text)
    return {(name, tuple(map(int, number.split(".")))) for name, number in found}


@needs_tools
def test_what_is_linked_runs_with_older_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HERE is not None
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    source, made = tmp_path / "newer.cpp", tmp_path / "newer.o"
    source.write_text(NEWER)
    subprocess.run([str(CXX), "-std=c++17", "-fPIC", "-O1", "-c", source, "-o", made], check=True)
    target = tmp_path / "_native.so"
    wheels.link(HERE, str(CXX), [made], target)
    limits = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
    assert {(name, number) for name, number in versions(target) if number > limits[name]} == set()
    needed = subprocess.run(["objdump", "-p", target], capture_output=True, text=True, check=True).stdout
    assert {"libtorch_cpu.so", "libdl.so.2", "libstdc++.so.6"} <= set(re.findall(r"NEEDED +(\S+)", needed))
    text = subprocess.run(["objdump", "-T", target], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in text.splitlines() if " .text" in line] == ["fxquant_text"]


@pytest.mark.parametrize(
    ("tag", "missing", "fits"),
    [
        ("manylinux_2_28_x86_64", ("libtorch_cpu.so",), True),
        ("manylinux_2_5_x86_64", ("libtorch_cpu.so",), True),
        ("manylinux_2_34_x86_64", ("libtorch_cpu.so",), False),
        ("manylinux_2_28_aarch64", ("libtorch_cpu.so",), False),
        ("linux_x86_64", ("libtorch_cpu.so",), False),
        ("manylinux_2_28_x86_64", ("libgomp.so.1", "libtorch_cpu.so"), False),
        ("manylinux_2_28_x86_64", (), False),
    ],
)
def test_an_audit_is_judged(tag: str, missing: tuple[str, ...], fits: bool) -> None:
    assert Audit(tag, missing, "").fits(X86) == fits


def test_an_audit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"sym_tag": "manylinux_2_27_x86_64", "external_libs": {"libtorch_cpu.so": None}})
    outputs = {True: said, False: "as text"}

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, outputs["--json" in command], "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    assert wheels.audit(Path("a.whl")) == Audit("manylinux_2_27_x86_64", ("libtorch_cpu.so",), "as text")


def test_a_wheel_that_auditwheel_cannot_read_stops(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"auditwheel cannot judge none\.whl"):
        wheels.audit(tmp_path / "none.whl")


def test_what_cannot_be_built_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Processor, "compiler", lambda self: None)
    monkeypatch.setattr(wheels.platform, "machine", lambda: "x86_64")
    assert wheels.main([]) == 1  # nothing at all
    assert wheels.main(["--only", "aarch64"]) == 1  # not what was asked for
    assert capsys.readouterr().out.splitlines()[1] == (
        "manylinux_2_28_aarch64: not built: no aarch64-linux-gnu-g++ (apt-get install g++-aarch64-linux-gnu)"
    )
    monkeypatch.setattr(wheels.platform, "machine", lambda: "s390x")
    assert wheels.main([]) == 1  # no wheel was built


def test_tags() -> None:
    assert [each.tag for each in (X86, ARM)] == ["manylinux_2_28_x86_64", "manylinux_2_28_aarch64"]
