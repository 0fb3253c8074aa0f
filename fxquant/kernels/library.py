"""The operator library ``torch.ops.fxquant``, and the native kernels behind it.

An operator is defined from Python: schema, reference (pure torch, runs on any device) and fake (shapes only). The
native libraries, where they were built, bring kernels for CPU and CUDA, which then run in place of the reference.

To add one: ``kernels/<family>/<op>.py`` declares a record (:mod:`fxquant.kernels.call`), or calls :func:`define` where
it gives more than a tensor or has a gradient. In the folder ``csrc/<family>``, ``cpu/<op>.cpp`` (checks arguments,
allocates, registers: sees torch, compiled once) calls a loop declared in ``cpu/loops/<op>.h`` and written in
``cpu/loops/<op>.cpp`` (sees no torch and no C++ standard library, compiled once for each instruction set that changes
it); ``cuda/<op>.cu`` is its counterpart. Arithmetic that both need stands in ``csrc/math``. ``table`` is a short
example. Build with ``pip install -e . --no-build-isolation`` or, quicker, ``python setup.py build_ext --inplace``.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

import torch

from fxquant.errors import FxQuantWarning, KernelError, layout
from fxquant.kernels.building import build_command
from fxquant.kernels.sources import fingerprint, fingerprint_in
from fxquant.settings import CpuIsa, read_settings, warn_of_unknown

LIBRARY = torch.library.Library("fxquant", "DEF")
"""Owns every definition; they live as long as it does."""

SETTINGS = read_settings()
warn_of_unknown()
CPU_ISAS: tuple[str, ...] = get_args(CpuIsa)[1:]
"""Instruction sets; the position is the number that csrc/cpu/isa.h gives it. The last are those of dot_products.h."""

_FOLDER = Path(__file__).parent
PACKAGE = _FOLDER.parent
_log = logging.getLogger("fxquant")


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Says which native kernels are loaded, for ``python -m fxquant doctor``."""

    paths: tuple[Path, ...]
    """The loaded libraries."""
    devices: tuple[str, ...]
    """Device types that have native kernels: of ``cpu`` and ``cuda``."""
    cpu_isa: str
    """Instruction set in use; empty without the CPU library."""
    best_cpu_isa: str
    """Instruction set that is used if nothing else is asked for; empty without the CPU library."""
    reason: str
    """Why the reference runs in place of native kernels on the CPU; empty if it does not."""
    tiles_refusal: str = ""
    """Why the CPU library multiplies without the tiles of AMX; empty if it can with them, or is not loaded."""
    amx_refusal: str = ""
    """Why the set ``amx`` does not run, though FXQUANT_CPU_ISA asks for it; empty if it does, or is not asked for."""


def define(
    schema: str,
    *,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: bool = False,
) -> str:
    """Define ``torch.ops.fxquant.<name>``, which has native kernels.

    Args:
        schema: Name, arguments and results, in torch's schema language; with an overload name or without.
        reference: The result in pure torch: what tests compare with, and what runs where no native kernel is.
        fake: The result's shape, dtype and strides, on tensors that have no data.
        gradient: Whether a gradient is going to be registered. Without one the operator is invisible to autograd, which
            saves 2 to 4 us a call.

    Returns:
        The qualified name ``fxquant::<name>``.
    """
    kernel = _refusal(schema.partition("(")[0]) if SETTINGS.kernels == "native" else reference
    return _define(schema, kernel, fake, gradient)


COMPOSED: set[str] = set()
"""Qualified names of the operators without native kernels: they call others."""


def compose(schema: str, *, kernel: Callable[..., Any], fake: Callable[..., Any], gradient: bool = False) -> str:
    """Define an operator that calls others, on every device; arguments and result as for :func:`define`."""
    name = _define(schema, kernel, fake, gradient)
    COMPOSED.add(name)
    return name


def _define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], gradient: bool) -> str:
    name = LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    operator = schema.partition("(")[0]
    LIBRARY.impl(operator, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fxquant::{operator}", _of_one_kind(operator, fake), lib=LIBRARY)
    torch.library.register_vmap(f"fxquant::{operator}", _one_by_one(operator), lib=LIBRARY)
    if not gradient:
        LIBRARY.impl(operator, torch.library.fallthrough_kernel, "Autograd")
    return f"fxquant::{name}"


def _of_one_kind(operator: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return a shape function that refuses tensors with and without data in one call: no data would come out of it."""

    def check(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if len({tensor.device.type == "meta" for tensor in tensors}) > 1:
            raise KernelError(
                f"fxquant::{operator}: the tensors lie on different devices",
                got=", ".join(sorted({tensor.device.type for tensor in tensors})),
                expected="one device",
            )
        return fake(*args, **kwargs)

    return check


def _one_by_one(operator: str) -> Callable[..., Any]:
    """Return what ``torch.vmap`` runs: a call of the operator for each element of the batch."""
    packet, _, overload = operator.partition(".")

    def run(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        call = getattr(getattr(torch.ops.fxquant, packet), overload or "default")
        if call._schema.is_mutable:
            raise KernelError(
                f"fxquant::{operator} changes its arguments, so torch.vmap cannot run it", hint="call it in a loop"
            )
        if info.batch_size == 0:
            raise KernelError(f"fxquant::{operator} cannot tell the result of an empty batch", got="torch.vmap over 0")
        of_args = list(zip(args, in_dims, strict=True))
        results = [call(*(_element(arg, dim, i) for arg, dim in of_args)) for i in range(info.batch_size)]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0,) * len(results[0])

    return run


def _element(argument: Any, dim: Any, index: int) -> Any:
    """Return what the call of one element of a batch is given; of a list of tensors or numbers each by itself."""
    if isinstance(argument, (list, tuple)):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(argument)
        return [_element(item, one, index) for item, one in zip(argument, dims, strict=True)]
    return argument if dim is None else argument.select(dim, index)


def native_status() -> NativeStatus:
    """Report what is loaded now."""
    devices = tuple(device for device, path in (("cpu", _cpu.path), ("cuda", _cuda.path)) if path is not None)
    return NativeStatus(
        paths=tuple(path for path in (_cpu.path, _cuda.path) if path is not None),
        devices=devices,
        cpu_isa=CPU_ISAS[_cpu.handle.fxquant_active_isa()] if _cpu.handle is not None else "",
        best_cpu_isa=CPU_ISAS[_cpu.handle.fxquant_best_isa()] if _cpu.handle is not None else "",
        reason=_cpu.reason,
        tiles_refusal=_said("fxquant_tiles_refusal"),
        amx_refusal=_said("fxquant_tile_loops_refusal") if SETTINGS.cpu_isa == "amx" else "",
    )


def _said(function: str) -> str:
    """Return the text that a function of the CPU library gives; an empty one where that is not loaded."""
    if _cpu.handle is None:
        return ""
    call = getattr(_cpu.handle, function)
    call.restype = ctypes.c_char_p
    return call().decode()


def native_library() -> Any:
    """Return the CPU library, for ctypes; None where it was not loaded."""
    return _cpu.handle


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that the CPU kernels can run with here; none without the CPU library."""
    if _cpu.handle is None:
        return ()
    return tuple(name for number, name in enumerate(CPU_ISAS) if _cpu.handle.fxquant_has_isa(number))


def set_isa(name: str) -> None:
    """Make the CPU kernels of this process use an instruction set.

    Raises:
        KernelError: the CPU does not have it, or no native CPU library is loaded.
    """
    if name not in available_isas() or not _cpu.handle.fxquant_set_isa(CPU_ISAS.index(name)):
        raise KernelError(
            f"the CPU kernels cannot use the instruction set {name!r}",
            got=_cpu.reason or (_said("fxquant_tile_loops_refusal") if name == "amx" else None),
            expected=", ".join(available_isas()) or "a native CPU library",
            hint="unset FXQUANT_CPU_ISA, or ask for a lower one",
        )


_isa_lock = threading.RLock()


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Run the CPU kernels with another instruction set for a while; one thread at a time holds it.

    The set is one for the whole process: kernels that other threads run meanwhile use it too (with equal results).

    Raises:
        KernelError: as :func:`set_isa`.
    """
    with _isa_lock:
        before = native_status().cpu_isa
        set_isa(name)
        try:
            yield
        finally:
            set_isa(before)


@dataclass(frozen=True, slots=True)
class _Native:
    """One shared library: where it was loaded from, and its handle; or why it was not."""

    path: Path | None = None
    handle: Any = None
    reason: str = ""


def _load(name: str, absent: str) -> _Native:
    path, csrc = _FOLDER / name, _FOLDER / "csrc"
    if SETTINGS.kernels == "reference":
        return _Native(reason="FXQUANT_KERNELS=reference")
    if not path.exists():
        reason = f"{absent} {build_command(PACKAGE)}"
        _log.info("no native library %s: %s", path, reason)
        return _Native(reason=reason)
    if csrc.is_dir() and fingerprint_in(path) != fingerprint(csrc, "cuda" if "cuda" in name else "cpu"):
        # It may register other schemas than those that are defined here, which only calls would show.
        reason = f"{path} was built from other sources: {build_command(PACKAGE)}"
        _log.warning("%s", reason)
        return _Native(reason=reason)
    try:
        torch.ops.load_library(path)
        return _Native(path, ctypes.CDLL(str(path)))
    except OSError as error:
        reason = f"{path} does not load: {error.__cause__ or error}"
        hint = f"build it against this torch: {build_command(PACKAGE)}"
        warnings.warn(FxQuantWarning(layout("a native library is unusable", got=reason, hint=hint)), stacklevel=2)
        return _Native(reason=reason)


def _refusal(operator: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        devices = sorted({value.device.type for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)})
        raise KernelError(
            f"fxquant::{operator} has no native kernel for {', '.join(devices)} tensors",
            got="FXQUANT_KERNELS=native",
            hint=_cpu.reason or "FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing",
        )

    return refuse


_cpu = _load(
    "_native.so",
    "the native library was not built: install a C++ compiler (as c++, g++ or clang++), then",
)
_cuda = (
    _load("_native_cuda.so", "the CUDA library was not built: with nvcc on PATH, FXQUANT_CUDA=1")
    if torch.cuda.is_available()
    else _Native(reason="torch sees no CUDA device")
)
if SETTINGS.cpu_isa == "amx" and _said("fxquant_tile_loops_refusal"):
    # A container or an old kernel may hide AMX from one of many machines: the next set gives the same bits.
    _log.warning("FXQUANT_CPU_ISA=amx: %s, so %s runs", _said("fxquant_tile_loops_refusal"), native_status().cpu_isa)
elif SETTINGS.cpu_isa != "auto" and _cpu.handle is not None:
    set_isa(SETTINGS.cpu_isa)
