"""Runs torch's own tests of its quantization against ``fxquant.compat``, and prints which pass.

    python benchmarks/torch_suite.py                     # all three files, by torch.ao and by fxquant.compat
    python benchmarks/torch_suite.py -k linear --only compat

The tests are those of torch 2.6: of the folder that ``FXQUANT_TORCH_TESTS`` names (``.../test/quantization``), or of
Debian's source package, which is fetched once into ``out/`` and compared with the checksum below. The names that a test
file imports from ``torch.ao`` are replaced by those of ``fxquant.compat``; torch's eager mode, which many tests compare
with, stays torch's. Which nodes a graph has is looked at, and not judged: that is what ``checkGraphModuleNodes`` of
torch's test case does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import types
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "torch_suite"
DEBIAN = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main\n"
TARBALL = "pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
FILES = ("fx/test_quantize_fx.py", "core/test_workflow_module.py", "core/test_workflow_ops.py")
SECONDS = 60
"""A test that takes more of the processor has failed; what else runs on the machine does not count."""

EAGER = {"prepare", "prepare_qat", "convert", "quantize", "quantize_dynamic", "quantize_qat", "fuse_modules"}
"""Names of torch's eager mode that stay torch's: tests compare with what it makes."""


def sources() -> Path:
    """Return the folder of torch's tests."""
    if given := os.environ.get("FXQUANT_TORCH_TESTS"):
        return Path(given)
    if not (found := OUT / "test" / "quantization").exists():
        fetch()
    return found


def fetch() -> None:
    """Fetch Debian's source package, compare its checksum, and unpack the tests."""
    for name in ("lists/partial", "cache/archives/partial"):
        (OUT / "apt" / name).mkdir(parents=True, exist_ok=True)
    (OUT / "apt" / "sources.list").write_text(DEBIAN)
    options = {
        "Dir::Etc::sourcelist": OUT / "apt" / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": OUT / "apt" / "lists",
        "Dir::Cache": OUT / "apt" / "cache",
    }
    apt = ["apt-get", "-qq", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "source", "--download-only", "pytorch=2.6.0+dfsg-7"], check=True, cwd=OUT)
    data = (OUT / TARBALL).read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != SHA256:
        raise SystemExit(f"{TARBALL} has checksum {found}, expected {SHA256}")
    with tarfile.open(OUT / TARBALL) as archive:
        for member in archive:
            _, _, path = member.name.partition("/")
            if path.startswith("test/quantization/") and member.isfile():
                member.name = path
                archive.extract(member, OUT, filter="data")


class Swap:
    """A pytest plugin: names are replaced when a test file was imported, and results are written down."""

    def __init__(self, ours: bool, results: Path) -> None:
        self.ours, self.results = ours, results
        self.checks = Counter[str]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        from torch.testing._internal import common_quantization

        items[:] = [item for item in items if item.cls is not None]  # others are helpers that begin with test_
        case: Any = common_quantization.QuantizationTestCase
        check = case.checkGraphModuleNodes

        def looked_at(this: Any, *args: Any, **kwargs: Any) -> None:
            try:
                check(this, *args, **kwargs)
                self.checks["as torch.ao"] += 1
            except AssertionError:
                self.checks["otherwise"] += 1

        case.checkGraphModuleNodes = looked_at
        if self.ours:
            names = offered()
            for module in {item.module for item in items} | {common_quantization}:
                for name in set(vars(module)) & set(names):
                    setattr(module, name, names[name])
                if module.__name__.endswith("test_workflow_ops"):
                    module.torch = Kernels("torch")

    def pytest_runtest_setup(self, item: Any) -> None:
        signal.signal(signal.SIGPROF, _too_long)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def pytest_runtest_logreport(self, report: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            text = report.longreprtext.strip().splitlines() if report.failed else []
            reason = next((line[2:].strip() for line in reversed(text) if line.startswith("E  ")), "")
            first = next((line[2:].strip() for line in text if line.startswith("E  ")), reason)
            row = {"test": report.nodeid.split("/")[-1], "outcome": report.outcome, "reason": first[:200]}
            with self.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


class Kernels(types.ModuleType):
    """``torch``, but for the operators that ``fxquant.compat.kernels`` has under the same name."""

    def __getattr__(self, name: str) -> Any:
        import torch

        from fxquant.compat import kernels

        ours = "fake_quantize" in name or name.startswith("fused_moving")
        return getattr(kernels if ours else torch, name)


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s of CPU time")


def offered() -> dict[str, Any]:
    """Return every name of ``fxquant.compat`` that test files import from torch.ao."""
    from fxquant.compat import (
        backend_config,
        custom_config,
        fake_quantize,
        observer,
        qconfig,
        qconfig_mapping,
        quant_type,
        quantize_fx,
    )

    found: dict[str, Any] = {}
    modules = (
        observer,
        fake_quantize,
        qconfig,
        qconfig_mapping,
        custom_config,
        backend_config,
        quant_type,
        quantize_fx,
    )
    for module in modules:
        found |= {name: value for name, value in vars(module).items() if not name.startswith("__")}
    ordinary = {"Any", "torch", "nn", "F", "copy", "sys", "Tensor", "GraphModule", "OrderedDict", "annotations"}
    return {name: value for name, value in found.items() if name not in ordinary | EAGER}


def run(ours: bool, files: tuple[str, ...], pick: str) -> list[dict[str, str]]:
    """Run the files in one process of their own, and return a row for each test."""
    results = OUT / ("compat.jsonl" if ours else "torch.jsonl")
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--inside", "compat" if ours else "torch", "--results", str(results)]
    command += ["-k", pick] if pick else []
    subprocess.run([*command, "--files", *files], check=False, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def inside(options: argparse.Namespace) -> None:
    """Run pytest in this process."""
    import pytest

    folder = sources()
    swap = Swap(options.inside == "compat", Path(options.results))
    arguments = [str(folder / name) for name in options.files]
    flags = ["-c", "/dev/null", "--rootdir", str(folder), "-q", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore"]
    pytest.main([*flags, *(["-k", options.k] if options.k else []), *arguments], plugins=[swap])
    print(dict(swap.checks))


def table(name: str, rows: dict[str, list[dict[str, str]]]) -> str:
    """Return a line for each way to run a file."""
    lines = []
    for who, found in rows.items():
        count = Counter(row["outcome"] for row in found if row["test"].startswith(name))
        ran = count["passed"] + count["failed"]
        lines.append(f"{name:<28} {who:<16} {count['passed']:>4} of {ran:>3} pass, {count['skipped']:>3} skipped")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="pytest's choice of tests")
    parser.add_argument("--only", choices=("torch", "compat"))
    parser.add_argument("--files", nargs="+", default=FILES)
    parser.add_argument("--inside", choices=("torch", "compat"), help=argparse.SUPPRESS)
    parser.add_argument("--results", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
        return
    sources()
    files = tuple(options.files)
    rows = {
        f"by {who}": run(ours, files, options.k)
        for who, ours in (("torch.ao", False), ("fxquant.compat", True))
        if options.only in (None, "compat" if ours else "torch")
    }
    for file in files:
        print(table(Path(file).name, rows))
    for who, found in rows.items():
        for row in found:
            if row["outcome"] == "failed":
                print(f"{who}: {row['test']}\n    {row['reason']}")


if __name__ == "__main__":
    main()
