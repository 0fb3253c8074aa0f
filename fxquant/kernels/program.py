"""Programs: what native operators launched for inputs of one shape, recorded, and run again without the operators.

Nothing lies between two loops of a program: no Python, no checks, no allocation. ``csrc/cpu/program.cpp`` has the rest.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.library import native_library

INPUT, OUTPUT, TEMPORARY, CONSTANT = range(4)
"""What memory is to a program: the roles of ``csrc/cpu/recorder.h``."""


class Region(ctypes.Structure):
    """A stretch of memory that recorded operators read or wrote."""

    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("role", ctypes.c_int64),
        ("index", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a run gives out, made anew each time."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> Tensor:
        """A tensor without values."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class View:
    """A result: all of a buffer, or a view of it or of an input."""

    of_input: bool
    index: int
    whole: bool
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype = torch.uint8

    def of(self, inputs: Sequence[Tensor], buffers: Sequence[Tensor]) -> Tensor:
        """The result of one run."""
        base = (inputs if self.of_input else buffers)[self.index]
        if self.whole:
            return base
        if base.dtype != self.dtype:
            base = base.view(self.dtype)
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)


class Program:
    """Runs what was recorded, on other inputs of the same shapes, dtypes and strides. Several threads may call it.

    Args:
        regions: All memory that recorded operators read and wrote, apart from what bindings made for themselves.
        inputs: How many.
        buffers: What runs write their results to.
        results: In the order in which calls give them: views, or tensors that are always the same.
        constants: Tensors whose memory the program reads. They are kept.

    Raises:
        KernelError: what was recorded cannot be run again; the message says why.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        inputs: int,
        buffers: Sequence[Buffer],
        results: Sequence[View | Tensor],
        constants: Sequence[Tensor],
    ) -> None:
        self._library = library()
        self._handle = self._library.fxquant_record_end((Region * len(regions))(*regions), len(regions))
        if not self._handle:
            reason = self._library.fxquant_failure().decode()
            raise KernelError("what was recorded makes no program", got=reason)
        weakref.finalize(self, self._library.fxquant_program_free, self._handle)
        self._inputs, self._outputs = ctypes.c_void_p * inputs, ctypes.c_void_p * len(buffers)
        self._buffers, self._results, self._constants = tuple(buffers), tuple(results), tuple(constants)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results, in tensors of their own.

        Raises:
            KernelError: there is no memory for what lies between the loops.
        """
        buffers = [buffer.make() for buffer in self._buffers]
        ran = self._library.fxquant_program_run(
            self._handle,
            self._inputs(*[x.data_ptr() for x in inputs]),
            self._outputs(*[buffer.data_ptr() for buffer in buffers]),
        )
        if not ran:
            raise KernelError(
                "there is not enough memory to run a program", got=f"{self.arena_bytes} bytes more needed"
            )
        return [result.of(inputs, buffers) if isinstance(result, View) else result for result in self._results]

    @property
    def loops(self) -> int:
        """How many it runs: a table in which the bytes of a convolution are looked up needs none of its own."""
        return self._library.fxquant_program_steps(self._handle)

    @property
    def arena_bytes(self) -> int:
        """Size of the memory for all that lies between the loops; each thread that runs needs as much."""
        return self._library.fxquant_program_arena(self._handle)


def give_memory_back() -> None:
    """Leave to the system what was freed, which the C library would keep for later."""
    library().fxquant_trim()


def library() -> Any:
    """The native CPU library, with the types of its functions known; None where it was not loaded."""
    loaded = native_library()
    if loaded is not None and loaded.fxquant_record_end.restype is not ctypes.c_void_p:
        pointer, number, numbers = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
        for name, result, arguments in (
            ("record_begin", None, ()),
            ("record_drop", None, ()),
            ("record_steps", number, ()),
            ("record_forget", None, (number,)),
            ("failure", ctypes.c_char_p, ()),
            ("copy", None, (pointer, pointer, number, number, numbers, numbers, numbers)),
            ("trim", None, ()),
            ("program_free", None, (pointer,)),
            ("program_arena", number, (pointer,)),
            ("program_steps", number, (pointer,)),
            ("program_run", ctypes.c_bool, (pointer, pointer, pointer)),
            ("record_end", pointer, (ctypes.POINTER(Region), number)),
        ):
            function = getattr(loaded, f"fxquant_{name}")
            function.restype, function.argtypes = result, arguments
    return loaded
