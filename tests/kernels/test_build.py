"""setup.py: flags that results depend on, separation of instruction sets, caching, behaviour without a compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from setuptools import Distribution

from fxquant.kernels.library import COMPOSED, native_status
from fxquant.kernels.sources import fingerprint, fingerprint_in

ROOT = Path(__file__).parents[2]


def load_setup() -> ModuleType:
    spec = spec_from_file_location("fxquant_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_setup()
CXX = builder.find_cxx()
NVCC = shutil.which("nvcc")
TORCH = Path(torch.__file__).parent
FORBIDDEN = {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math", "-freciprocal-math"}
needs_cxx = pytest.mark.skipif(CXX is None, reason="no C++ compiler")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc")


def test_cpu_flags_keep_every_rounding() -> None:
    steps = builder.cpu_steps("c++", TORCH)
    assert {step.stem.partition("-")[0] for step in steps} >= {"cpu", "portable"}
    for step in steps:
        assert {"-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"} <= set(step.command), step.stem
        assert not FORBIDDEN & set(step.command), step.stem
        assert not [flag for flag in step.command if flag.startswith("-ffp-contract") and flag != "-ffp-contract=off"]


def test_cuda_flags_keep_every_rounding() -> None:
    steps = builder.cuda_steps(NVCC or "true", TORCH)
    assert len(steps) > 3
    for step in steps:
        assert {"-fmad=false", "-Werror=all-warnings"} <= set(step.command), step.stem
        assert not {"-use_fast_math", "--use_fast_math", "-ftz=true", "-prec-div=false"} & set(step.command), step.stem
        host = next(flag for flag in step.command if flag.startswith("-Xcompiler="))
        assert {"-ffp-contract=off", "-Wall", "-Wextra", "-Werror"} <= set(host.removeprefix("-Xcompiler=").split(","))


def test_oldest_torch_is_the_one_that_pyproject_asks_for() -> None:
    oldest = ".".join(map(str, builder.OLDEST_TORCH))
    text = (ROOT / "pyproject.toml").read_text()
    assert text.count(f'"torch>={oldest}') == 1  # to run; to build, newer headers are wanted
    assert text.count('"torch>=2.14"]') == 1
    assert builder.TORCH_TARGET == "-DTORCH_TARGET_VERSION=0x020a000000000000"


def test_a_torch_whose_headers_are_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of torch 2.13 have no ``permute`` for the stable ABI; a library that was built against 2.14 runs on it."""
    (tmp_path / "torch").mkdir()
    origin = str(tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(builder, "find_spec", lambda name: spec_from_file_location(name, origin))
    with pytest.raises(SystemExit, match="fxquant runs on this torch, but is not built against it"):
        builder.torch_folder()
    header = tmp_path / "torch/include/torch/csrc/stable/ops.h"
    header.parent.mkdir(parents=True)
    header.write_text("inline torch::stable::Tensor permute(\n")
    assert builder.torch_folder() == tmp_path / "torch"


def test_every_cpu_source_has_a_cuda_source_of_the_same_stem() -> None:
    cpu = {
        path.parts[-3:]
        for path in builder.sources("cpu/*.cpp")
        if path.stem not in ("isa", "amx", "brgemm", "program", "recorder")
    }
    cuda = {path.parts[-3:] for path in builder.sources("cuda/*.cu")}
    assert {(family, name[:-4]) for family, _, name in cpu} == {(family, name[:-3]) for family, _, name in cuda}


def test_objects_have_names_of_their_own() -> None:
    """The folder of a family is not in the name of an object."""
    steps = [*builder.cpu_steps("c++", TORCH), *builder.cuda_steps(NVCC or "true", TORCH)]
    assert len({step.stem for step in steps}) == len(steps)


def test_maths_sees_no_torch_and_loops_see_only_ours_and_c_headers() -> None:
    for path in [*(builder.CSRC / "math").glob("*.h"), *builder.sources("cpu/loops/*.cpp")]:
        for source in builder.sources_of(path):
            for line in source.read_text().splitlines():
                if line.startswith("#include <"):
                    assert line.partition("<")[2].rstrip(">") in C_HEADERS, f"{source}: {line}"


C_HEADERS = {"arm_neon.h", "cmath", "cstdint", "cstring", "immintrin.h", "type_traits"}
"""The last has types alone, and no function that a linker could merge."""


@needs_cxx
def test_instruction_sets_share_no_function() -> None:
    """What two sets both define, the linker merges, and the portable set could get the AVX-512 version of it."""
    steps = [step for step in builder.cpu_steps(CXX, TORCH) if not step.stem.startswith("cpu-")]
    for step, path in zip(steps, builder.compile_all(steps), strict=True):
        isa = step.stem.partition("-")[0]
        lines = subprocess.run(["nm", "-C", "--defined-only", "-g", path], capture_output=True, text=True, check=True)
        symbols = [line.split(maxsplit=2)[1:] for line in lines.stdout.splitlines()]
        assert symbols, step.stem
        for kind, name in symbols:
            assert kind == "T", f"{step.stem}: {name}"
            assert name.startswith(f"fxquant::{isa}::"), f"{step.stem}: {name}"


@needs_cxx
def test_nothing_is_compiled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "OBJECTS", tmp_path / "objects")
    (tmp_path / "header.h").write_text("inline int two() { return 2; }\n")
    source = tmp_path / "source.cpp"
    source.write_text('#include "header.h"\nint f() { return two(); }\n')
    commands: list[list[str]] = []
    really_run = builder.run
    monkeypatch.setattr(builder, "run", lambda command: (commands.append(command), really_run(command))[1])

    def build(*flags: str) -> int:
        commands.clear()
        objects = builder.compile_all([builder.Step(source, "source", (CXX, "-fPIC", *flags))])
        builder.link(CXX, objects, [], TORCH, tmp_path / "library.so")
        return len(commands)

    assert build() == 2
    assert (tmp_path / "library.so").exists()
    assert build() == 0
    assert build("-O1") == 2
    (tmp_path / "header.h").write_text("inline int two() { return 1 + 1; }\n")
    assert build() == 2
    monkeypatch.setattr(builder, "version", lambda package: "2.99")
    assert build() == 2


@needs_cxx
def test_a_library_carries_the_fingerprint_of_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cxx = builder.find_cxx()
    if cxx is None:
        pytest.skip("no C++ compiler")
    csrc, target = tmp_path / "csrc", tmp_path / "_native.so"
    (csrc / "cpu").mkdir(parents=True)
    (csrc / "cpu" / "isa.cpp").write_text("int isa;")
    monkeypatch.setattr(builder, "CSRC", csrc)
    monkeypatch.setattr(builder, "OBJECTS", tmp_path / "objects")

    builder.build_cpu(target)
    assert fingerprint_in(target) == fingerprint(csrc, "cpu")

    (csrc / "cpu" / "isa.cpp").write_text("int isa; ")
    assert fingerprint_in(target) != fingerprint(csrc, "cpu")
    builder.build_cpu(target)
    assert fingerprint_in(target) == fingerprint(csrc, "cpu")


def test_a_compile_error_stops_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "OBJECTS", tmp_path / "objects")
    source = tmp_path / "broken.cpp"
    source.write_text("int f() { return undeclared; }\n")
    with pytest.raises(SystemExit) as stop:
        builder.compile_all([builder.Step(source, "broken", (CXX,))])
    assert str(stop.value).startswith("fxquant: a native kernel does not compile\n")
    assert "undeclared" in str(stop.value)


def test_without_a_compiler_the_package_installs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("FXQUANT_CUDA", "0")
    distribution = Distribution({"name": "fxquant", "ext_modules": builder.extensions()})
    command = builder.BuildNative(distribution)
    command.build_lib = str(tmp_path / "lib")
    command.ensure_finalized()
    with pytest.warns(UserWarning, match=r"no C\+\+ compiler found"):
        command.run()
    assert not list(tmp_path.glob("**/*.so"))
    assert capsys.readouterr().err == (
        "fxquant: no C++ compiler found (tried $CXX, c++, g++, clang++): "
        "fxquant will run on its Python reference, slowly\n"
    )


def test_what_an_earlier_build_left_goes_into_no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("FXQUANT_CUDA", "0")
    command = builder.BuildNative(Distribution({"name": "fxquant", "ext_modules": builder.extensions()}))
    command.build_lib = str(tmp_path / "lib")
    left = [tmp_path / "lib" / "fxquant" / "kernels" / name for name in ("_native.so", "_native_cuda.so")]
    left[0].parent.mkdir(parents=True)
    for path in left:
        path.write_bytes(b"old")
    command.ensure_finalized()
    with pytest.warns(UserWarning, match=r"no C\+\+ compiler found"):
        command.run()
    assert not any(path.exists() for path in left)


def test_old_setuptools_stop_the_installation_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "setuptools.command.bdist_wheel", None)
    with pytest.raises(SystemExit) as stop:
        load_setup()
    assert str(stop.value).splitlines() == [
        "fxquant is built with setuptools 77 or later, and this one is older.",
        "  hint:     pip install 'setuptools>=77', then pip install --no-build-isolation -e .",
    ]


def test_asking_for_cuda_without_nvcc_stops_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FXQUANT_CUDA", "1")
    assert [extension.name for extension in builder.extensions()][1:] == ["fxquant.kernels._native_cuda"]
    with pytest.raises(SystemExit) as stop:
        builder.build_cuda(tmp_path / "library.so")
    assert str(stop.value) == "fxquant: FXQUANT_CUDA=1 asks for the CUDA kernels, but there is no nvcc on PATH"


@needs_cxx
@needs_nvcc
def test_cuda_sources_compile_and_register_every_operator(tmp_path: Path) -> None:
    """On a machine without a GPU, nothing else looks at them."""
    target = tmp_path / "_native_cuda.so"
    assert builder.build_cuda(target) is None
    if "cuda" not in native_status().devices:
        torch.ops.load_library(target)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("fxquant::") and name not in COMPOSED:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"), name


WITHOUT_KERNELS = {"cuda-copy"}
"""CUDA sources that only call the framework."""


@needs_cxx
@needs_nvcc
def test_cuda_kernels_keep_everything_in_registers() -> None:
    """ptxas says so of every kernel for both GPUs that get machine code; a spill is traffic that no one sees."""
    steps = builder.cuda_steps(NVCC, TORCH)
    for step, path in zip(steps, builder.compile_all(steps), strict=True):
        log = path.with_suffix(".log").read_text()
        for arch in ("sm_80", "sm_90"):
            assert (f"' for '{arch}'" in log) == (step.stem not in WITHOUT_KERNELS), step.stem
        found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert len(found) == log.count("Compiling entry function"), step.stem
        assert not [each for each in found if each[1:] != ("0", "0")], f"{step.stem}: {log}"
