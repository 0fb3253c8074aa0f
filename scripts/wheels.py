"""Builds wheels that run on other machines, into ``dist/``, and says what auditwheel finds of them. ``make wheel``.

One wheel for each processor serves every Python 3 and every torch from the oldest that is supported on: the library
uses no Python ABI, and of torch only its stable ABI. What makes a wheel of this machine's compiler run on glibc 2.28,
with the libstdc++ of that time, happens when it is linked:

    dlopen, dlsym           are asked of libdl.so.2, where glibc had them before 2.34 and where later ones find them
    __libc_single_threaded  which headers of libstdc++ read since glibc 2.32, is defined inside: 0, for many threads
    functions of libstdc++  that came after GCC 8 are defined inside, from the headers

Objects are those of ``setup.py``, in ``build/native``: what was compiled for this clone is not compiled again. For
another processor a cross compiler is wanted, and nothing of torch but its headers, which are the same for all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from setuptools import setup

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.environments import Environment, run_tests, tests_alone  # noqa: E402
from scripts.plain_loops import compared, missing  # noqa: E402

LIMIT = 1200.0
"""Seconds for the README on a busy machine."""
CASES = 100
"""Random calls of each loop under an emulator."""
GLIBC = (2, 28)


@dataclass(frozen=True, slots=True)
class Processor:
    """One kind of machine that a wheel is built for."""

    name: str
    base: str
    """Version of the oldest symbols of its glibc."""
    cross: str
    """Compiler that makes code for it elsewhere."""
    package: str
    """Debian's package that has this compiler."""

    @property
    def tag(self) -> str:
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.name}"

    def compiler(self) -> str | None:
        """Return the path of a compiler; None where there is none."""
        if platform.machine() == self.name:
            return builder().find_cxx()
        return shutil.which(self.cross)


PROCESSORS = (
    Processor("x86_64", "GLIBC_2.2.5", "x86_64-linux-gnu-g++", "g++-x86-64-linux-gnu"),
    Processor("aarch64", "GLIBC_2.17", "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
)
DL = ("dlopen", "dlsym", "dlclose", "dlerror")
"""What ``libdl.so.2`` had before glibc 2.34."""
INSIDE = """\
#include <new>
#include <sstream>

char __libc_single_threaded = 0;  // declared by the headers; 0: other threads may run

namespace std {
void __throw_bad_array_new_length() { throw bad_array_new_length(); }  // GLIBCXX_3.4.29
}

template std::basic_ostringstream<char>::basic_ostringstream();  // GLIBCXX_3.4.26
template std::basic_stringstream<char>::basic_stringstream();
"""
"""What the library brings itself, since glibc 2.28 and the libstdc++ of GCC 8 have it not."""
EXPORTED = "{ global: fxquant_*; local: *; };\n"

_builder: ModuleType | None = None


def builder() -> ModuleType:
    """``setup.py``, as a module."""
    global _builder
    if _builder is None:
        spec = spec_from_file_location("fxquant_setup", ROOT / "setup.py")
        assert spec is not None
        assert spec.loader is not None
        _builder = module_from_spec(spec)
        spec.loader.exec_module(_builder)
    return _builder


def stub(cxx: str, folder: Path, name: str, functions: Sequence[str], version: str) -> Path:
    """Build a library that only lends its name, its functions and their version to what is linked with it.

    Args:
        name: File name, and the name by which the other machine looks for the real one.
        functions: Names; none, if what is linked may take all that it lacks from there.
        version: Of the functions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, script, target = (folder / f"{name}{suffix}" for suffix in (".c", ".map", ""))
    source.write_text("".join(f"void {function}(void) {{}}\n" for function in functions))
    script.write_text(f"{version} {{ global: {'; '.join(functions)}; local: *; }};\n" if functions else "")
    scripts = [f"-Wl,--version-script={script}"] if functions else []
    command = [cxx, "-x", "c", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", f"-Wl,-soname,{name}", *scripts]
    builder().run([*command, str(source), "-o", str(target)])
    return target


def link(processor: Processor, cxx: str, objects: Sequence[Path], target: Path) -> None:
    """Link a library that runs with the glibc of the tag, and with any libstdc++."""
    folder = ROOT / "build" / "wheel" / processor.name / "stubs"
    libraries = [
        stub(cxx, folder, "libtorch_cpu.so", (), ""),
        stub(cxx, folder, "libdl.so.2", DL, processor.base),
    ]
    inside, exported = folder / "inside.cpp", folder / "exported.map"
    inside.write_text(INSIDE)
    exported.write_text(EXPORTED)
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", "-std=c++17", "-O3", f"-Wl,--version-script={exported}", "-Wl,--no-as-needed", "-s"]
    builder().run([cxx, *flags, *map(str, objects), str(inside), *map(str, libraries), "-o", str(target)])


def build_library(processor: Processor, cxx: str, target: Path) -> None:
    """Compile what is not compiled yet, and link it, as the builder of ``setup.py`` does for this machine."""
    setup_py = builder()
    setup_py.is_x86 = lambda: processor.name == "x86_64"
    setup_py.is_arm = lambda: processor.name == "aarch64"
    if processor.name != platform.machine():  # warnings that no build on a developer's machine shows stop no release
        setup_py.CXX_FLAGS = tuple(flag for flag in setup_py.CXX_FLAGS if flag != "-Werror")
    steps = setup_py.cpu_steps(cxx, setup_py.torch_folder())
    stamp = setup_py.stamp_step("cpu", (cxx, *setup_py.CXX_FLAGS))
    link(processor, cxx, setup_py.compile_all([*steps, stamp]), target)


def build(processor: Processor, cxx: str, dist: Path) -> Path:
    """Build one wheel.

    Returns:
        Its path, in ``dist``.
    """
    setup_py = builder()
    folder = ROOT / "build" / "wheel" / processor.name
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier build left would go into the wheel
    folder.mkdir(parents=True)
    for old in dist.glob(f"fxquant-*-{processor.tag}.whl"):
        old.unlink()
    setup_py.BUILDERS = {"fxquant.kernels._native": partial(build_library, processor, cxx)}
    os.environ["FXQUANT_CUDA"] = "0"
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
    arguments = [
        *("-q", "egg_info", "--egg-base", str(folder), "build", "--build-base", str(folder)),
        *("bdist_wheel", "--dist-dir", str(dist), "--bdist-dir", str(folder / "wheel"), "--plat-name", processor.tag),
    ]
    commands = {"build_ext": setup_py.BuildNative, "bdist_wheel": setup_py.NativeWheel}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that setup.py is not called by pip: this is what build tools do as well
        setup(ext_modules=setup_py.extensions(), cmdclass=commands, script_args=arguments)
    (wheel,) = dist.glob(f"fxquant-*-{processor.tag}.whl")
    return wheel


def commit_time() -> str:
    """Return the seconds of the newest commit, so that files in a wheel have the time of their sources."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "315532800"


@dataclass(frozen=True, slots=True)
class Audit:
    """What auditwheel finds of a wheel."""

    tag: str
    """The oldest platform that has all versions of symbols that the libraries in it ask for."""
    missing: tuple[str, ...]
    """Libraries that it needs and that no platform has; torch brings ``libtorch_cpu.so``, and has loaded it."""
    text: str

    def fits(self, processor: Processor) -> bool:
        """Whether the wheel runs wherever one of the processor's tag does, beside torch."""
        found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{processor.name}", self.tag)
        return found is not None and (int(found[1]), int(found[2])) <= GLIBC and self.missing == ("libtorch_cpu.so",)


def audit(wheel: Path) -> Audit:
    command = [sys.executable, "-m", "auditwheel", "show"]
    text = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    done = subprocess.run([*command, "--json", str(wheel)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"fxquant: auditwheel cannot judge {wheel.name}\n{done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    return Audit(found["sym_tag"], tuple(sorted(found["external_libs"])), text.stdout + text.stderr)


def tries_readme(wheel: Path) -> str:
    """Install a wheel in an environment of its own, and run the README's programs there.

    Returns:
        What pytest printed last.

    Raises:
        SystemExit: the wheel cannot be installed, or a program fails.
    """
    folder = ROOT / "build" / "wheel" / "try"
    environment = Environment(folder / "environment").create()
    environment.borrow()  # torch is not fetched again
    done = environment.pip("--no-deps", "--no-index", str(wheel))
    if done.returncode == 0:
        alone = tests_alone(folder / "clone")  # without sources, which CONTRIBUTING.md names
        done = run_tests(environment, alone, ("tests/test_readme.py",), LIMIT, "-k", "not CONTRIBUTING")
    if done.returncode != 0:
        raise SystemExit(f"fxquant: the README does not run on {wheel.name}\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def tries_loops(wheel: Path) -> bool:
    """Run the loops of a wheel for ARM, compiled as they are in it, in a plain program under an emulator.

    Returns:
        Whether they agree with those of this machine. Without an emulator nothing is run, which is printed.
    """
    if missing():
        print(f"{wheel.name}: its loops were not run: {missing()}")
        return True
    said, wrong = compared(CASES)
    print("\n".join([f"{wheel.name}, its loops as a plain program:", *said, *wrong[:20]]))
    return not wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    names = [processor.name for processor in PROCESSORS]
    parser.add_argument("--only", choices=names, action="append", help="a processor; once for each (all)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where wheels go (dist)")
    parser.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="run the README on the one for this machine, and the loops of the one for ARM under an emulator",
    )
    options = parser.parse_args(argv)
    os.chdir(ROOT)  # setuptools reads pyproject.toml there
    failed, built = 0, 0
    for processor in PROCESSORS:
        if processor.name not in (options.only or names):
            continue
        cxx = processor.compiler()
        if cxx is None:
            wanted = processor.name in (options.only or [platform.machine()])
            failed += wanted
            print(f"{processor.tag}: not built: no {processor.cross} (apt-get install {processor.package})")
            continue
        wheel = build(processor, cxx, options.dist.resolve())
        found = audit(wheel)
        right = found.fits(processor)
        failed += not right
        built += 1
        needs = f"its symbols are those of {found.tag}, beside {', '.join(found.missing)}"
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB; auditwheel: {needs}")
        if not right:
            print(f"{found.text}\nfxquant: this wheel does not run everywhere that its tag says")
        elif options.tries and processor.name == platform.machine():
            print(f"{wheel.name}, installed by itself, runs the README: {tries_readme(wheel)}")
        elif options.tries and processor.name == "aarch64":
            failed += not tries_loops(wheel)
    return 1 if failed or not built else 0


if __name__ == "__main__":
    sys.exit(main())
