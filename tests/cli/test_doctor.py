from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fxquant.__main__ import main
from fxquant.cli import doctor
from fxquant.cli.doctor import Finding
from fxquant.kernels.building import build_command
from fxquant.kernels.library import PACKAGE, NativeStatus

BUILD = build_command(PACKAGE)


def status(**changes: object) -> NativeStatus:
    fields = {"paths": (), "devices": (), "cpu_isa": "", "best_cpu_isa": "", "reason": ""} | changes
    return NativeStatus(**fields)  # type: ignore[arg-type]


def test_the_report_covers_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FXQUANT_CACHE", str(tmp_path))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in (torch.__version__, "native CPU kernels", "C++ compiler", "extra [examples]"):
        assert word in text
    assert f"{tmp_path} is empty" in text
    assert f"environment                     FXQUANT_CACHE={tmp_path}" in text


def test_settings_that_nothing_reads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.environment("FXQUANT_DEBUG", "0") == Finding("environment", "ok", "FXQUANT_DEBUG=0")
    near = doctor.environment("FXQUANT_KERNAL", "native")
    assert near == Finding("environment", "unread", "FXQUANT_KERNAL=native", "did you mean 'FXQUANT_KERNELS'?")
    assert doctor.environment("FXQUANT_OF_ANOTHER_PROGRAM", "1").advice.startswith(
        "those that are read: FXQUANT_DEBUG, "
    )
    monkeypatch.setenv("FXQUANT_KERNAL", "native")
    assert doctor.run(argparse.Namespace()) == 0
    assert "unread  environment                     FXQUANT_KERNAL=native" in capsys.readouterr().out


def test_something_broken_changes_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: iter([Finding("kernels", "broken", "does not load")]))
    assert main(["doctor"]) == 1


def test_instruction_sets() -> None:
    assert doctor.cpu("A", ("avx2", "avx512_vnni")) == Finding("cpu", "ok", "A: avx2, avx512_vnni")
    old = doctor.cpu("B", ("avx2",))
    assert (old.state, old.fact) == ("slow", "B: avx2")
    assert "VNNI" in old.advice
    assert doctor.cpu("C", ()).fact == "C: no int8 instruction set known"


def test_native_cpu_kernels() -> None:
    best = status(devices=("cpu",), cpu_isa="avx512_vnni", best_cpu_isa="avx512_vnni")
    without = replace(best, tiles_refusal="this CPU has no AMX")
    assert doctor.native_cpu(without).fact == "using avx512_vnni; no AMX tiles: this CPU has no AMX"
    tiles = replace(best, cpu_isa="brgemm", best_cpu_isa="brgemm")
    assert doctor.native_cpu(tiles).fact == "using brgemm; large int8 products by oneDNN's brgemm on AMX tiles"
    forced = replace(without, cpu_isa="brgemm")
    assert doctor.native_cpu(forced).fact == (
        "using brgemm (the best here is avx512_vnni); large int8 products by oneDNN's brgemm, without AMX tiles: "
        "this CPU has no AMX"
    )
    lowered = replace(tiles, cpu_isa="avx2")
    assert doctor.native_cpu(lowered).fact == "using avx2 (the best here is brgemm); no AMX tiles: avx2 was asked for"
    own = replace(tiles, cpu_isa="amx")
    assert doctor.native_cpu(own).fact == "using amx (the best here is brgemm); int8 products on AMX tiles"
    emulated = doctor.native_cpu(replace(without, cpu_isa="amx_emulated"))
    assert emulated.fact.endswith("(the best here is avx512_vnni); int8 products on emulated tiles, slowly: for tests")
    refused = doctor.native_cpu(replace(without, amx_refusal="the operating system lets no process use AMX"))
    assert refused.fact == (
        "using avx512_vnni; amx was asked for and cannot run: the operating system lets no process use AMX"
    )
    chosen = doctor.native_cpu(status(reason="FXQUANT_KERNELS=reference"))
    assert (chosen.state, chosen.advice) == ("slow", "unset FXQUANT_KERNELS")
    absent = doctor.native_cpu(status(reason="the native library was not built: install a C++ compiler"))
    assert absent == Finding("native CPU kernels", "slow", "the native library was not built", "install a C++ compiler")
    broken = doctor.native_cpu(status(reason="/x/_native.so does not load: undefined symbol"))
    assert broken == Finding(
        "native CPU kernels",
        "broken",
        "/x/_native.so does not load: undefined symbol",
        f"build it against this torch: {BUILD}",
    )
    older = doctor.native_cpu(status(reason=f"/x/_native.so was built from other sources: {BUILD}"))
    assert (older.state, older.advice) == ("slow", BUILD)


def test_cuda_kernels() -> None:
    assert doctor.native_cuda(status(), available=False).state == "absent"
    missing = doctor.native_cuda(status(devices=("cpu",)), available=True)
    assert (missing.state, missing.advice) == ("slow", f"with nvcc on PATH, FXQUANT_CUDA=1 {BUILD}")


def test_compiler_and_extras() -> None:
    assert doctor.compiler("/usr/bin/c++").state == "ok"
    assert doctor.compiler("").advice == f"with one, {BUILD} builds native kernels"
    assert doctor.extra("dev", ("pytest",)).state == "ok"
    missing = doctor.extra("report", ("no_such_package_here", "torch"))
    assert (missing.fact, missing.advice) == ("no no_such_package_here", "pip install 'fxquant[report]'")
