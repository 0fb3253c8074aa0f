"""Builds the native kernels of fxquant when it is installed. All else about the package stands in pyproject.toml.

``fxquant/kernels/csrc`` becomes at most two shared libraries beside ``fxquant/kernels/library.py``, which loads them:

    _native.so        every cpu/*.cpp once (argument checks, registration), and cpu/loops/*.cpp once for each
                      instruction set that changes it (is_compiled_for)
    _native_cuda.so   every cuda/*.cu, where a GPU is present or FXQUANT_CUDA=1 (FXQUANT_CUDA=0: never)

Each family of operators (``conv``, ``pool``) has these folders, and those at the top hold what families share. Sources
name the headers that they include by their path below ``csrc``.

Objects are kept in ``build/native`` under a name that hashes all they were made from, so that nothing is compiled
twice; beside each lies what its compiler said (``.log``). FXQUANT_SANITIZE=1 compiles for AddressSanitizer and UBSan.
Without a compiler the package installs all the same and runs on its Python reference; a compile error with a compiler
present fails the installation.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # pip checks the version only where it isolates the build; a new venv of Python 3.11 has 65
    raise SystemExit(
        "fxquant is built with setuptools 77 or later, and this one is older.\n"
        "  hint:     pip install 'setuptools>=77', then pip install --no-build-isolation -e ."
    ) from None

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "fxquant" / "kernels" / "csrc"
OBJECTS = ROOT / "build" / "native"
OUR_HEADERS = ("-I", str(CSRC))

OLDEST_TORCH = (2, 10)
"""First torch whose stable ABI has all that the kernels use; the libraries run on it and on every later one."""
TORCH_TARGET = f"-DTORCH_TARGET_VERSION=0x{OLDEST_TORCH[0]:02x}{OLDEST_TORCH[1]:02x}000000000000"

CXX_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # a * b + c keeps its two roundings, so that every instruction set, the GPU and the reference agree to the bit
    "-ffp-contract=off",
    # without these two GCC does not vectorise rounding; neither changes a value
    *("-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Werror"),
)
SANITIZE_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1")
if os.environ.get("FXQUANT_SANITIZE") == "1":
    CXX_FLAGS += SANITIZE_FLAGS
X86_FLAGS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ),
}
X86_FLAGS["avx512_vnni"] = (*X86_FLAGS["avx512"], "-mavx512vnni")
X86_FLAGS["amx"] = (*X86_FLAGS["avx512_vnni"], "-mamx-tile", "-mamx-int8")
"""One compilation of the loops for each, but as ``is_compiled_for`` says."""
ARM_FLAGS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "neon_dotprod": ("-march=armv8.2-a+dotprod",),
    "neon_i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
}
"""The same for 64-bit ARM. A compiler that does not know the last has none but the first."""
TILE_LOOPS = ("portable", "avx512_vnni", "amx")
"""The sets that loops on tiles are compiled for; tiles are emulated but for the last."""
USES_SUDOT = """\
#include <arm_neon.h>
int32x4_t use(int32x4_t a, int8x16_t b, uint8x8_t c) { return vsudotq_lane_s32(a, b, c, 0); }
"""
USES_TILES = "#include <immintrin.h>\nvoid use() { _tile_zero(0); _tile_dpbssd(0, 1, 2); _tile_release(); }\n"
NVCC_FLAGS = (
    *("-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wextra,-Werror"),
    # what ptxas says of registers and spills goes to the logs, where a test reads it
    *("-fmad=false", "-Werror=all-warnings", "-Xptxas=-v", "-DUSE_CUDA"),
    # machine code for A100 and H100; what is older or newer compiles the PTX itself
    "-gencode=arch=compute_75,code=[sm_80,sm_90,compute_75]",
)


class Step(NamedTuple):
    """One call of a compiler: ``command`` plus ``-c source -o object``."""

    source: Path
    stem: str
    command: tuple[str, ...]


def stamp_step(device: str, command: tuple[str, ...]) -> Step:
    """What puts the fingerprint of the sources into a library, so that it is not loaded once they have changed."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    source = OBJECTS / f"sources-{device}.cpp"
    source.write_text(sources_module().stamp(CSRC, device))
    return Step(source, source.stem, command)


def sources_module() -> ModuleType:
    """``fxquant.kernels.sources``, without importing fxquant, which needs torch and what is about to be built."""
    spec = spec_from_file_location("fxquant_sources", ROOT / "fxquant" / "kernels" / "sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def is_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


def find_cxx() -> str | None:
    """The C++ compiler: $CXX, or the first of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def wants_cuda() -> bool:
    wish = os.environ.get("FXQUANT_CUDA", "")
    return wish == "1" or (wish != "0" and Path("/proc/driver/nvidia/version").exists())


def torch_folder() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "fxquant is built against the torch that is installed, and there is none.\n"
            "  hint:     pip install torch, then pip install --no-build-isolation -e ."
        )
    folder = Path(spec.origin).parent
    operators = folder / "include/torch/csrc/stable/ops.h"
    if not operators.exists() or " permute(" not in operators.read_text():
        raise SystemExit(
            "fxquant runs on this torch, but is not built against it: its headers lack functions that kernels call\n"
            "  hint:     install a wheel, which make wheel builds elsewhere, or pip install 'torch>=2.14' to build"
        )
    return folder


def include_flags(torch: Path) -> tuple[str, ...]:
    return ("-isystem", str(torch / "include"), "-isystem", str(torch / "include/torch/csrc/api/include"))


def sources(place: str) -> list[Path]:
    """The sources at a place such as ``cuda/*.cu``, of every family and of what families share."""
    return sorted(CSRC.rglob(place))


def cpu_steps(cxx: str, torch: Path) -> list[Step]:
    """Bindings once, with torch's headers; loops once for each instruction set that changes them, without them.

    The loops see no header but the standard C ones and ours, whose functions are static: a function that two sets
    shared would be merged by the linker, and the portable set could get the AVX-512 version of it.
    """
    machine = ("-DFXQ_X86=1",) if is_x86() else ()
    knows_amx = is_x86() and compiles(cxx, X86_FLAGS["amx"], USES_TILES)
    if knows_amx:
        machine = (*machine, "-DFXQ_AMX=1")
    if is_arm() and compiles(cxx, ARM_FLAGS["neon_i8mm"], USES_SUDOT):
        machine = ("-DFXQ_ARM=1",)
    sets = X86_FLAGS if is_x86() else ARM_FLAGS if "-DFXQ_ARM=1" in machine else {"portable": ()}
    binding = (cxx, *CXX_FLAGS, *machine, TORCH_TARGET, *OUR_HEADERS, *include_flags(torch))
    steps = [Step(path, f"cpu-{path.stem}", binding) for path in sources("cpu/*.cpp")]
    for isa, flags in sets.items():
        loops = (cxx, *CXX_FLAGS, *machine, *flags, f"-DFXQ_ISA={isa}", *OUR_HEADERS)
        paths = [path for path in sources("cpu/loops/*.cpp") if is_compiled_for(isa, path)]
        if isa != "amx" or knows_amx:
            steps += [Step(path, f"{isa}-{path.stem}", loops) for path in paths]
    return steps


def is_compiled_for(isa: str, path: Path) -> bool:
    """Say whether a set has a version of a loop of its own.

    Loops on tiles, which ask __AMX_INT8__, have one for each of ``TILE_LOOPS``. Of the others ``amx`` has none, and
    ``avx512_vnni`` only where a source asks __AVX512VNNI__. The sets of ARM have those whose header declares them
    WITH_DOT_PRODUCTS.
    """
    texts = [each.read_text() for each in sources_of(path)]
    if any("__AMX_INT8__" in text for text in texts):
        return isa in TILE_LOOPS
    if isa == "avx512_vnni":
        return any("defined(__AVX512VNNI__)" in text for text in texts)  # not in a comment alone
    if isa.startswith("neon"):
        return "\nFXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(" in path.with_suffix(".h").read_text()
    return isa != "amx"


@functools.lru_cache
def compiles(cxx: str, flags: tuple[str, ...], source: str) -> bool:
    """Say whether the compiler and its assembler take a source in C++."""
    command = [cxx, *flags, "-x", "c++", "-c", "-", "-o", os.devnull]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).returncode == 0


def cuda_steps(nvcc: str, torch: Path) -> list[Step]:
    command = (nvcc, *NVCC_FLAGS, TORCH_TARGET, *OUR_HEADERS, *include_flags(torch), *toolkit_includes(nvcc, torch))
    return [Step(path, f"cuda-{path.stem}", command) for path in sources("cuda/*.cu")]


def host_steps(cxx: str, torch: Path) -> list[Step]:
    """The sources of the CUDA library as plain C++, where loops stand in for launches: see cuda/host_device.h."""
    command = (cxx, "-x", "c++", *CXX_FLAGS, "-O1", TORCH_TARGET, *OUR_HEADERS, *include_flags(torch))
    return [Step(path, f"host-{path.stem}", command) for path in sources("cuda/*.cu")]


def toolkit_includes(nvcc: str, torch: Path) -> tuple[str, ...]:
    """Where cuda_runtime.h lies, if nvcc does not know it: then beside torch, in the wheels that torch depends on.

    The nvcc on PATH may be a wrapper script, so its own folder says nothing; its dry run names the real one.
    """
    plan = subprocess.run([nvcc, "--dryrun", "-c", "any.cu"], capture_output=True, text=True, check=False).stderr
    top = re.search(r"_HERE_=(\S+)", plan)
    if top and (Path(top[1]).parent / "include" / "cuda_runtime.h").exists():
        return ()
    folders = sorted(torch.parent.glob("nvidia/cu*/include"))
    return tuple(flag for folder in folders for flag in ("-isystem", str(folder)))


def sources_of(path: Path, seen: set[Path] | None = None) -> set[Path]:
    """``path`` and every header of ours that it includes, however deep."""
    seen = set() if seen is None else seen
    if path not in seen:
        seen.add(path)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            beside = path.parent / name
            sources_of((beside if beside.exists() else CSRC / name).resolve(), seen)
    return seen


def fingerprint(step: Step, compiler: str) -> str:
    """Hash of all that decides what a step makes: flags, texts, compiler, torch. Not of where torch lies."""
    digest = hashlib.sha256()
    words = [word for word in step.command[1:] if not os.path.isabs(word)]
    digest.update("\0".join([*words, compiler, version("torch")]).encode())
    for path in sorted(sources_of(step.source)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def run(command: list[str]) -> str:
    """What the command printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"fxquant: a native kernel does not compile\n{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compile_all(steps: list[Step]) -> list[Path]:
    """Compile what is not in the cache yet, several at once; return all objects."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    compilers = {command: describe(command) for command in {step.command[0] for step in steps}}

    def make(step: Step) -> Path:
        target = OBJECTS / f"{step.stem}-{fingerprint(step, compilers[step.command[0]])}.o"
        if not target.exists():
            unfinished = target.with_suffix(f".{os.getpid()}")
            said = run([*step.command, "-c", str(step.source), "-o", str(unfinished)])
            if said:
                target.with_suffix(".log").write_text(said)
            os.replace(unfinished, target)
        return target

    jobs = int(os.environ.get("MAX_JOBS", 0)) or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(make, steps))


def describe(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


def link(linker: str, objects: list[Path], libraries: list[str], torch: Path, target: Path) -> None:
    """Link, unless the very same objects were linked before. Torch's libraries are those the process has loaded."""
    flags = [flag for flag in CXX_FLAGS if flag.startswith("-fsanitize")]
    key = hashlib.sha256("\0".join([linker, *libraries, *(path.name for path in objects)]).encode()).hexdigest()[:20]
    linked = OBJECTS / f"{target.stem}-{key}.so"
    if not linked.exists():
        unfinished = linked.with_suffix(f".{os.getpid()}")
        names = [f"-l{library}" for library in libraries]
        run([linker, "-shared", *flags, *map(str, objects), f"-L{torch / 'lib'}", *names, "-o", str(unfinished)])
        os.replace(unfinished, linked)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    shutil.copy2(linked, unfinished)
    os.replace(unfinished, target)  # never write into a library that a running process has mapped


def write_compile_commands(steps: list[Step]) -> None:
    """For clangd and other tools that want to know how a file is compiled."""
    rows = [{"directory": str(ROOT), "file": str(s.source), "arguments": [*s.command, str(s.source)]} for s in steps]
    (OBJECTS / "compile_commands.json").write_text(json.dumps(rows, indent=1))


def build_cpu(target: Path) -> str | None:
    """Build the CPU library; None, or why there is none."""
    cxx = find_cxx()
    if cxx is None:
        return "no C++ compiler found (tried $CXX, c++, g++, clang++): fxquant will run on its Python reference, slowly"
    torch = torch_folder()
    steps = cpu_steps(cxx, torch)
    objects = compile_all([*steps, stamp_step("cpu", (cxx, *CXX_FLAGS))])
    write_compile_commands(steps)
    link(cxx, objects, ["torch_cpu"], torch, target)
    return None


def build_cuda(target: Path) -> str | None:
    """Build the CUDA library; None, or why there is none."""
    nvcc = shutil.which("nvcc")
    if nvcc is None and os.environ.get("FXQUANT_CUDA") == "1":
        raise SystemExit("fxquant: FXQUANT_CUDA=1 asks for the CUDA kernels, but there is no nvcc on PATH")
    if nvcc is None or find_cxx() is None:
        return "a GPU is present, but no nvcc on PATH: on CUDA tensors fxquant will run its Python reference"
    torch = torch_folder()
    objects = compile_all([*cuda_steps(nvcc, torch), stamp_step("cuda", (nvcc, *NVCC_FLAGS))])
    link(nvcc, objects, ["torch_cpu", "torch_cuda"], torch, target)
    return None


def build_host(target: Path) -> None:
    """Build the CUDA sources for the host: operators of the namespace fxquant_host, for tests alone."""
    cxx = find_cxx()
    assert cxx is not None
    torch = torch_folder()
    link(cxx, compile_all(host_steps(cxx, torch)), ["torch_cpu"], torch, target)


BUILDERS: dict[str, Callable[[Path], str | None]] = {
    "fxquant.kernels._native": build_cpu,
    "fxquant.kernels._native_cuda": build_cuda,
}


class BuildNative(build_ext):
    """setuptools' build_ext, with our own compiler calls in place of its own."""

    def get_ext_filename(self, fullname: str) -> str:
        """No Python version in the name: these are no Python modules, torch loads them."""
        return os.path.join(*fullname.split(".")) + ".so"

    def run(self) -> None:
        """Without what an earlier build left, which would go into a wheel though nothing of it was built now."""
        for name in BUILDERS if not self.inplace else ():
            (Path(self.build_lib) / self.get_ext_filename(name)).unlink(missing_ok=True)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        reason = BUILDERS[ext.name](target)
        if reason is not None:
            print(f"fxquant: {reason}", file=sys.stderr)
            warnings.warn(f"fxquant: {reason}", stacklevel=1)  # what pip -v shows in colour, and build tools collect


class NativeWheel(bdist_wheel):
    """A wheel for one platform and any Python 3: the libraries do not use Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def extensions() -> list[Extension]:
    names = ["fxquant.kernels._native", *(["fxquant.kernels._native_cuda"] if wants_cuda() else [])]
    return [Extension(name, sources=[], optional=True) for name in names]


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative, "bdist_wheel": NativeWheel})
