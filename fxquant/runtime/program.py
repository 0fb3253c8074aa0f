"""Programs: what native operators launched for inputs of one shape, recorded, and run again without the operators.

Nothing lies between two loops of a program: no Python, no checks, no allocation. ``csrc/cpu/program.h`` runs
them, and ``csrc/cpu/program.cpp`` has the functions that are called from here.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.library import native_library
from fxquant.kernels.raw_bytes import raw_bytes

INPUT, OUTPUT, TEMPORARY, CONSTANT = range(4)
"""The kinds of memory of a program: the enum ``Role`` of ``csrc/cpu/recorder.h``."""


FILL_BYTES = (0xA5, 0x5A)
"""Bytes that fill the memory of a program before a check run: reading unwritten memory gives other bits then."""

NO_MEMORY = "there is not enough memory"
"""The message of the library where an allocation failed (``csrc/cpu/guarded.h``)."""


@dataclass(frozen=True, slots=True)
class OutputBuffer:
    """Describes an output buffer, which each run allocates."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> Tensor:
        """Return a tensor without values."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class View:
    """Describes a result: the whole of an output buffer, or a view of it or of an input."""

    of_input: bool
    index: int
    is_whole_buffer: bool
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype = torch.uint8

    def of(self, inputs: Sequence[Tensor], buffers: Sequence[Tensor]) -> Tensor:
        """Return the result of one run."""
        base = (inputs if self.of_input else buffers)[self.index]
        if self.is_whole_buffer:
            return base
        if base.dtype != self.dtype:
            base = base.view(self.dtype)
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)


class Program:
    """Runs what was recorded, on other inputs of the same shapes, dtypes and strides. Several threads may call it.

    Args:
        recorder: Handle of the recording.
        inputs: How many.
        buffers: The buffers that each run allocates for results.
        results: In the order in which calls give them: views, or tensors that are always the same.
        constants: Tensors whose memory the program reads. They are kept.

    Raises:
        KernelError: there is no memory for the program.
    """

    def __init__(
        self,
        recorder: int,
        inputs: int,
        buffers: Sequence[OutputBuffer],
        results: Sequence[View | Tensor],
        constants: Sequence[Tensor],
    ) -> None:
        self._library = library()
        self._handle = self._library.fxquant_record_end(recorder)  # makes a program: csrc/cpu/program.cpp
        if not self._handle:
            raise KernelError("what was recorded makes no program", got=last_failure())
        weakref.finalize(self, self._library.fxquant_program_free, self._handle)
        self._inputs, self._outputs = ctypes.c_void_p * inputs, ctypes.c_void_p * len(buffers)
        self._buffers, self._results, self._constants = tuple(buffers), tuple(results), tuple(constants)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the results, in tensors of their own.

        Raises:
            KernelError: it failed: there is no memory for what lies between the loops, say.
        """
        return self._run(inputs, [buffer.make() for buffer in self._buffers], -1)

    def reproduces(self, inputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
        """Check that runs give certain results to the bit, strides included, whatever lay in their memory before.

        Args:
            inputs: As for a call; best none of the tensors that were recorded.
            wanted: As many as calls give.

        Raises:
            KernelError: as for a call.
        """
        for fill in FILL_BYTES:
            buffers = [buffer.make() for buffer in self._buffers]
            for buffer in buffers:
                torch.tensor([], dtype=torch.uint8).set_(buffer.untyped_storage()).fill_(fill)
            found = self._run(inputs, buffers, fill)
            if not all(map(_same_bits, found, wanted)):
                return False
        return True

    def _run(self, inputs: Sequence[Tensor], buffers: Sequence[Tensor], fill: int) -> list[Tensor]:
        """Run once. Arena and scratch memory are filled with a byte first, unless ``fill`` is -1."""
        ran = self._library.fxquant_program_run(
            self._handle,
            self._inputs(*[x.data_ptr() for x in inputs]),
            self._outputs(*[buffer.data_ptr() for buffer in buffers]),
            fill,
        )
        if not ran:
            if (reason := last_failure()) != NO_MEMORY:
                raise KernelError("a program failed", got=reason)
            raise KernelError(f"{NO_MEMORY} to run a program", got=f"{self.arena_bytes} bytes more needed")
        return [result.of(inputs, buffers) if isinstance(result, View) else result for result in self._results]

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """Tensors whose memory it reads in each run, where it lay when they were recorded."""
        return self._constants

    @property
    def loops(self) -> int:
        """The number of loops. A lookup table that was fused into a convolution does not count."""
        return self._library.fxquant_program_loops(self._handle)

    @property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """Loops that run together, strip by strip of rows: the numbers that they had in the recording."""
        return tuple(takewhile(bool, (self._links(chain) for chain in count())))

    def _links(self, chain: int) -> tuple[int, ...]:
        links = (self._library.fxquant_program_link(self._handle, chain, link) for link in count())
        return tuple(takewhile(lambda number: number >= 0, links))

    @property
    def arena_bytes(self) -> int:
        """Bytes of all temporary tensors but those inside chains. Each call at the same time needs as much."""
        return self._library.fxquant_program_arena(self._handle)


def _same_bits(found: Tensor, wanted: Tensor) -> bool:
    if (found.dtype, found.shape, found.stride()) != (wanted.dtype, wanted.shape, wanted.stride()):
        return False
    return torch.equal(raw_bytes(found), raw_bytes(wanted))


def give_memory_back() -> None:
    """Leave to the system what was freed, which the C library would keep for later."""
    library().fxquant_trim()


def last_failure() -> str:
    """Return the message of the last function of the library that failed in this thread."""
    return library().fxquant_failure().decode()


def library() -> Any:
    """Return the native CPU library, with the types of its functions declared; None where it was not loaded."""
    loaded = native_library()
    if loaded is not None and loaded.fxquant_record_end.restype is not ctypes.c_void_p:
        pointer, number, numbers = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
        for name, result, arguments in (
            ("failure", ctypes.c_char_p, ()),
            ("record_begin", pointer, ()),
            ("record_free", None, (pointer,)),
            ("record_to", pointer, (pointer,)),
            ("record_region", ctypes.c_bool, (pointer, pointer, number, number, number)),
            ("record_steps", number, (pointer,)),
            ("record_forget", None, (pointer, number)),
            ("copy", ctypes.c_bool, (pointer, pointer, number, number, numbers, numbers, numbers)),
            ("trim", None, ()),
            ("fail_allocations", None, (number,)),
            ("program_free", None, (pointer,)),
            ("program_arena", number, (pointer,)),
            ("program_loops", number, (pointer,)),
            ("program_link", number, (pointer, number, number)),
            ("chains_from", number, (number,)),
            ("program_run", ctypes.c_bool, (pointer, pointer, pointer, number)),
            ("record_end", pointer, (pointer,)),
        ):
            function = getattr(loaded, f"fxquant_{name}")
            function.restype, function.argtypes = result, arguments
    return loaded
