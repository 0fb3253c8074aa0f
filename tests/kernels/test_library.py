"""Loading of the native libraries, choice of kernels and instruction sets."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fxquant.errors import FxQuantWarning, KernelError
from fxquant.kernels import dequantize, library
from fxquant.kernels.building import build_command
from fxquant.kernels.library import CPU_ISAS, available_isas, native_status, set_isa, use_isa
from fxquant.settings import Settings

ABSENT = "the native library was not built: install a C++ compiler (as c++, g++ or clang++), then"
BUILD = build_command(library.PACKAGE)
AUTO = "FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing"
Run = Callable[..., subprocess.CompletedProcess[str]]
needs_native = pytest.mark.skipif(not available_isas(), reason="no native CPU library is loaded")


@pytest.fixture
def run(fresh: Any) -> Run:
    """Runs a program in a fresh process, with ``first`` before the library is loaded."""

    def run(program: str, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FXQUANT_")}
        lines = ["import torch", first, "from fxquant.kernels import library, dequantize", program]
        folder = Path(__file__).parents[2]
        return fresh("\n".join(lines), environment={**inherited, **environment}, folder=folder)

    return run


DEQUANTIZE = "print(dequantize(torch.tensor([3], dtype=torch.uint8), torch.tensor(0.5), torch.tensor(1)).item())"


@needs_native
def test_status_names_what_is_loaded() -> None:
    status = native_status()
    assert "cpu" in status.devices
    assert status.paths[0].name == "_native.so"
    assert status.best_cpu_isa in available_isas()
    assert status.cpu_isa in available_isas()
    assert status.reason == ""


@needs_native
def test_use_isa_changes_the_set_and_restores_it() -> None:
    before = native_status().cpu_isa
    for name in available_isas():
        with use_isa(name):
            assert native_status().cpu_isa == name
    with pytest.raises(ZeroDivisionError), use_isa("portable"):
        raise ZeroDivisionError
    assert native_status().cpu_isa == before


@needs_native
def test_use_isa_holds_off_other_threads() -> None:
    seen: list[str] = []
    with use_isa(available_isas()[-1]):
        thread = threading.Thread(target=_enter, args=(seen,))
        thread.start()
        thread.join(0.05)
        assert seen == []
        assert native_status().cpu_isa == available_isas()[-1]
    thread.join()
    assert seen == ["portable"]


def _enter(seen: list[str]) -> None:
    with use_isa("portable"):
        seen.append(native_status().cpu_isa)


@needs_native
def test_an_unknown_set_is_refused() -> None:
    before = native_status().cpu_isa
    with pytest.raises(KernelError) as error:
        set_isa("sse9")
    assert str(error.value) == (
        "the CPU kernels cannot use the instruction set 'sse9'\n"
        f"  expected: {', '.join(available_isas())}\n"
        "  hint:     unset FXQUANT_CPU_ISA, or ask for a lower one"
    )
    assert native_status().cpu_isa == before


@needs_native
def test_environment_lowers_the_set_and_insists_on_native_kernels(run: Run) -> None:
    done = run(
        f"print(library.native_status().cpu_isa)\n{DEQUANTIZE}", FXQUANT_CPU_ISA="portable", FXQUANT_KERNELS="native"
    )
    assert done.stdout.split() == ["portable", "1.0"], done.stderr


MISSING_ISAS = [isa for isa in CPU_ISAS if isa not in available_isas()]


@needs_native
def test_environment_cannot_raise_the_set(run: Run) -> None:
    missing = next(isa for isa in MISSING_ISAS if isa != "amx")  # no CPU has the sets of x86 and of ARM
    done = run("", FXQUANT_CPU_ISA=missing)
    assert f"KernelError: the CPU kernels cannot use the instruction set '{missing}'" in done.stderr


@needs_native
@pytest.mark.skipif("amx" not in MISSING_ISAS, reason="this CPU has AMX")
def test_the_next_set_runs_where_amx_is_refused(run: Run) -> None:
    program = (
        "status = library.native_status()\n"
        "print(status.cpu_isa == status.best_cpu_isa, status.amx_refusal)\n"
        "library.set_isa('amx')"
    )
    done = run(program, FXQUANT_CPU_ISA="amx")
    known, _, reason = done.stdout.strip().partition(" ")
    assert known == "True"
    assert reason in (
        "this CPU has no AMX",
        "this CPU has AMX without AVX-512 VNNI",
        "the operating system lets no process use AMX",
        "AMX is used on Linux alone",
        "the compiler that built the kernels knows no AMX",
    )
    assert done.stderr.startswith(f"FXQUANT_CPU_ISA=amx: {reason}, so {native_status().best_cpu_isa} runs\n")
    assert f"cannot use the instruction set 'amx'\n  got:      {reason}\n" in done.stderr
    assert native_status().amx_refusal == ""  # nobody asked


@needs_native
def test_environment_asks_for_emulated_tiles(run: Run) -> None:
    done = run(f"print(library.native_status().cpu_isa)\n{DEQUANTIZE}", FXQUANT_CPU_ISA="amx_emulated")
    assert done.stdout.split() == ["amx_emulated", "1.0"], done.stderr


def test_environment_asks_for_the_reference(run: Run) -> None:
    program = f"{DEQUANTIZE}\nprint(library.native_status())\nlibrary.set_isa('portable')"
    done = run(program, FXQUANT_KERNELS="reference")
    assert done.stdout.splitlines() == [
        "1.0",
        "NativeStatus(paths=(), devices=(), cpu_isa='', best_cpu_isa='', reason='FXQUANT_KERNELS=reference', "
        "tiles_refusal='', amx_refusal='')",
    ], done.stderr
    assert done.stderr.endswith(
        "fxquant.errors.KernelError: the CPU kernels cannot use the instruction set 'portable'\n"
        "  got:      FXQUANT_KERNELS=reference\n"
        "  expected: a native CPU library\n"
        "  hint:     unset FXQUANT_CPU_ISA, or ask for a lower one\n"
    )


def test_insisting_on_native_kernels_fails_without_the_library(run: Run) -> None:
    hide = (
        "import pathlib; exists = pathlib.Path.exists; pathlib.Path.exists = lambda p: p.suffix != '.so' and exists(p)"
    )
    done = run(DEQUANTIZE, first=hide, FXQUANT_KERNELS="native")
    assert done.stderr.endswith(
        "fxquant.errors.KernelError: fxquant::dequantize has no native kernel for cpu tensors\n"
        "  got:      FXQUANT_KERNELS=native\n"
        f"  hint:     {ABSENT} {BUILD}\n"
    )


def test_refusal_without_a_kernel_for_the_device() -> None:
    with pytest.raises(KernelError) as error:
        library._refusal("dequantize")(torch.empty(2, device="meta"), scale=torch.zeros(2), axis=None)
    assert str(error.value) == (
        "fxquant::dequantize has no native kernel for cpu, meta tensors\n"
        "  got:      FXQUANT_KERNELS=native\n"
        f"  hint:     {native_status().reason or AUTO}"
    )


def test_a_library_that_is_not_there_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "SETTINGS", Settings())
    native = library._load("_native.so", ABSENT)
    assert (native.path, native.handle, native.reason) == (None, None, f"{ABSENT} {BUILD}")


def test_a_library_that_does_not_load_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "SETTINGS", Settings())
    path = tmp_path / "_native.so"
    path.write_text("no library")
    with pytest.warns(FxQuantWarning) as caught:
        native = library._load("_native.so", ABSENT)
    assert native.path is None
    assert native.reason.startswith(f"{path} does not load: {path}: ")
    assert str(caught[0].message) == (
        f"a native library is unusable\n  got:      {native.reason}\n  hint:     build it against this torch: {BUILD}"
    )


def test_a_library_that_was_built_from_other_sources_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logged: Any
) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "SETTINGS", Settings())
    monkeypatch.setattr(torch.ops, "load_library", lambda path: pytest.fail("it was loaded"))
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "isa.cpp").write_text("int isa;")
    path = tmp_path / "_native.so"
    reason = f"{path} was built from other sources: {BUILD}"
    for older in (b"built before there were fingerprints", b"\0fxquant-sources:0123456789abcdef0123456789abcdef\0"):
        path.write_bytes(older)
        logged.records.clear()
        native = library._load("_native.so", ABSENT)
        assert (native.path, native.handle, native.reason) == (None, None, reason)
        assert logged.messages == [reason]


@pytest.mark.slow
def test_the_reference_stands_in_for_a_library_built_from_other_sources(run: Run) -> None:
    other = "import pathlib; read = pathlib.Path.read_bytes; pathlib.Path.read_bytes = lambda p: read(p)[:99]"
    done = run(f"{DEQUANTIZE}\nprint(library.native_status().reason)", first=other)
    assert done.stdout.splitlines()[0] == "1.0", done.stderr
    insisting = run(DEQUANTIZE, first=other, FXQUANT_KERNELS="native")
    assert "fxquant::dequantize has no native kernel for cpu tensors" in insisting.stderr
    if available_isas():
        reason = f"_native.so was built from other sources: {BUILD}"
        assert done.stdout.splitlines()[1].endswith(reason)
        assert f"{reason}\n" in insisting.stderr.partition("hint:")[2]


def test_every_operator_has_a_native_cpu_kernel_and_a_fake() -> None:
    if not available_isas():
        pytest.skip("no native CPU library is loaded")
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fxquant::")]
    assert len(names) > 10
    assert set(library.COMPOSED) <= set(names)
    for name in names:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") != (name in library.COMPOSED), name
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd"), name


@needs_native
def test_kernels_may_run_in_several_threads_at_once() -> None:
    q = torch.randint(0, 256, (64, 1000), dtype=torch.uint8)
    expected = dequantize(q, torch.tensor(0.1), torch.tensor(3))
    results: list[bool] = []

    def work() -> None:
        results.extend(torch.equal(dequantize(q, torch.tensor(0.1), torch.tensor(3)), expected) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
