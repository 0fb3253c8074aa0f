"""Records native operators while they run, so that they become a :class:`~fxquant.runtime.program.Program`."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import CALLS
from fxquant.runtime.modes import Mode, NotRecordableError, view_or_metadata
from fxquant.runtime.program import (
    CONSTANT,
    INPUT,
    OUTPUT,
    TEMPORARY,
    OutputBuffer,
    Program,
    View,
    last_failure,
    library,
)

RECORDED = frozenset(getattr(torch.ops.fxquant, name).default for name, call in CALLS.items() if call.recordable)
"""Operators whose bindings do nothing but check shapes and launch loops."""

RECORDED_QUANTIZE = frozenset((torch.ops.fxquant.quantize.default, torch.ops.fxquant.dequantize.default))
"""The same, of bindings that read their qparams as well: these are constants of the program."""

LARGEST_RECORDING = 1 << 29
"""Bytes of all results of what is recorded. Each is kept until the end, and calls so large gain nothing by programs."""


class Recording(Mode):
    """Records what a thread runs inside :meth:`attempt`, until :meth:`finish`.

    Tensors that the operators read are inputs, where they were named so before, results of earlier operators, or
    constants: packed weights, tables, scales. Whatever is allocated meanwhile lives as long as the recording.

    Raises:
        KernelError: there is no memory for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._library = library()
        self._handle = self._library.fxquant_record_begin()
        if not self._handle:
            raise KernelError("nothing can be recorded", got=last_failure())
        self._free = weakref.finalize(self, self._library.fxquant_record_free, self._handle)
        self._inputs: list[Tensor] = []
        self._allocated: dict[int, Tensor] = {}
        """Start of the memory of a result -> a tensor that keeps it."""
        self._constants: dict[int, Tensor] = {}
        self._bytes = 0

    def add_input(self, x: Tensor) -> None:
        """Name an input of the program, before it is read.

        Raises:
            NotRecordableError: another tensor of the recording lies in the same memory.
        """
        self._add_region(x.data_ptr(), _extent(x) * x.element_size(), INPUT, len(self._inputs))
        self._inputs.append(x)

    @property
    def loops(self) -> int:
        """Return the number of loops recorded so far."""
        return self._library.fxquant_record_steps(self._handle)

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` and record it.

        Raises:
            NotRecordableError: it runs what no program can hold; nothing of it was recorded then.
        """
        loops, allocated = self.loops, len(self._allocated)
        before = self._library.fxquant_record_to(self._handle)  # launch() of csrc/cpu/launch.h notes loops from here on
        try:
            with self:
                result = call()
            if self.loops == loops and len(self._allocated) > allocated:
                raise NotRecordableError("memory that is filled later: what is in it until then differs in each call")
            return result
        except BaseException:
            self._library.fxquant_record_forget(self._handle, loops)
            raise
        finally:
            self._library.fxquant_record_to(before)

    def finish(self, results: Sequence[Tensor]) -> Program:
        """Return the program that gives these results.

        Raises:
            KernelError: a result is none that a program can give, or there is no memory for the program.
        """
        buffers, views, outputs = self._described(results)
        try:
            for begin, index in outputs.items():
                self._add_region(begin, self._allocated[begin].untyped_storage().nbytes(), OUTPUT, index)
        except NotRecordableError as error:
            raise KernelError("what was recorded makes no program", got=error) from None
        return Program(self._handle, len(self._inputs), buffers, views, tuple(self._constants.values()))

    def drop(self) -> None:
        """Forget all. Nothing can be recorded after that."""
        self._free()
        self._inputs, self._allocated, self._constants = [], {}, {}

    def _add_region(self, begin: int, bytes_: int, role: int, index: int = 0) -> None:
        if not self._library.fxquant_record_region(self._handle, begin, bytes_, role, index):
            raise NotRecordableError(last_failure())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in RECORDED:
            self._read(_tensors(args))
            results = func(*args, **kwargs)
            for result in _tensors((results,)):
                self._track_result(result)
            return results
        if func in RECORDED_QUANTIZE:
            qparams = (*args[1:3], *kwargs.values())
            if any(self._is_input(x) or x.untyped_storage().data_ptr() in self._allocated for x in _tensors(qparams)):
                raise NotRecordableError("qparams that are computed in each call")
            self._read(_tensors(args[:1]))
            return self._track_result(func(*args, **kwargs))
        if func in TRANSLATED:
            return TRANSLATED[func](self, *args, **kwargs)
        return view_or_metadata(self, func, args, kwargs)

    def _track_result(self, result: Tensor) -> Tensor:
        storage = result.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self._allocated:
            self._add_region(storage.data_ptr(), storage.nbytes(), TEMPORARY)
            self._allocated[storage.data_ptr()] = result
            self._bytes += storage.nbytes()
        if self._bytes > LARGEST_RECORDING:
            raise NotRecordableError("the results are too large to be kept")
        return result

    def _read(self, tensors: Iterator[Tensor]) -> None:
        for tensor in tensors:
            if has_pending_conj_or_neg(tensor):
                raise NotRecordableError("a tensor whose values are not what lies in memory")
            begin = tensor.untyped_storage().data_ptr()
            if begin and begin not in self._allocated and begin not in self._constants and not self._is_input(tensor):
                self._add_region(begin, tensor.untyped_storage().nbytes(), CONSTANT)
                self._constants[begin] = tensor.detach()

    def _is_input(self, tensor: Tensor) -> bool:
        return any(tensor.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in self._inputs)

    def _input_around(self, view: Tensor) -> int:
        """Find the input that a view lies in: inputs that are parts of one tensor now need not be in another call."""
        for index, x in enumerate(self._inputs):
            end = x.data_ptr() + _extent(x) * x.element_size()
            if x.data_ptr() <= view.data_ptr() and view.data_ptr() + _extent(view) * view.element_size() <= end:
                return index
        raise KernelError("a result lies outside of the inputs")

    def copy(self, to: Tensor, source: Tensor, flipped: Sequence[int] = ()) -> None:
        """``to.copy_(source.flip(flipped))`` as a step of the program; ``to`` is a result of this recording."""
        if source.requires_grad and torch.is_grad_enabled():
            raise NotRecordableError("a copy that autograd follows")
        if to.element_size() > 8 or to.dtype != source.dtype or to.untyped_storage().data_ptr() not in self._allocated:
            raise NotRecordableError("a copy to another dtype, or into a tensor that was there before")
        self._read(iter((source,)))
        source = source.expand(to.shape)
        begin, strides = source.data_ptr(), list(source.stride())
        for dim in flipped if to.numel() else ():
            begin += (to.shape[dim] - 1) * strides[dim] * to.element_size()
            strides[dim] = -strides[dim]
        numbers = ctypes.c_int64 * to.dim()
        copied = self._library.fxquant_copy(
            to.data_ptr(), begin, to.element_size(), to.dim(), numbers(*to.shape), numbers(*to.stride()),
            numbers(*strides),
        )  # fmt: skip
        if not copied:
            raise NotRecordableError(last_failure())

    def _described(self, results: Sequence[Tensor]) -> tuple[list[OutputBuffer], list[View | Tensor], dict[int, int]]:
        """Buffers, results, and which buffer takes the place of which memory."""
        outputs: dict[int, int] = {}
        buffers: list[OutputBuffer] = []
        views: list[View | Tensor] = []
        for result in results:
            if has_pending_conj_or_neg(result):
                raise KernelError("no program gives a tensor whose values are not what lies in memory")
            begin = result.untyped_storage().data_ptr()
            where = (tuple(result.shape), tuple(result.stride()))
            # Without elements.
            if not result.numel():
                views.append(View(False, len(buffers), True))
                buffers.append(OutputBuffer(*where, result.dtype))
            elif begin in self._allocated:
                # In memory that the recording allocated: a buffer for each, and a view of it.
                if begin not in outputs:
                    bytes_ = result.untyped_storage().nbytes()
                    whole = _extent(result) * result.element_size() == bytes_
                    outputs[begin] = len(buffers)
                    buffers.append(
                        OutputBuffer(*where, result.dtype) if whole else OutputBuffer((bytes_,), (1,), torch.uint8)
                    )
                made = buffers[outputs[begin]]
                whole = (made.size, made.stride, made.dtype) == (*where, result.dtype)
                views.append(View(False, outputs[begin], whole, *where, int(result.storage_offset()), result.dtype))
            elif self._is_input(result):
                # In an input; anything else is a constant.
                index = self._input_around(result)
                bytes_ = result.data_ptr() - self._inputs[index].data_ptr()
                views.append(View(True, index, False, *where, bytes_ // result.element_size(), result.dtype))
            else:
                views.append(result)
        return buffers, views, outputs


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def clone_reversed(x: Tensor) -> Tensor:
    """Copy ``x`` with the same shape, strides and dtype, its elements in reverse.

    So whatever a program holds of the values or of the memory of its recording shows when it runs on ``x``.
    """
    extent = _extent(x)
    if not extent:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    copied = x.detach().as_strided((extent,), (1,)).flip(0).as_strided(x.shape, x.stride())
    return copied.requires_grad_() if x.requires_grad and torch.is_grad_enabled() else copied


def has_pending_conj_or_neg(x: Tensor) -> bool:
    """Tell whether a negation or conjugation of the values is pending, so that the memory holds others."""
    return x.is_neg() or x.is_conj()


def _extent(x: Tensor) -> int:
    """Elements from the first to the last in memory."""
    if not x.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _copied(recording: Recording, x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    recording.copy(made := recording._track_result(x.clone(memory_format=memory_format or torch.preserve_format)), x)
    return made


def _copied_into(recording: Recording, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    recording.copy(to, source)
    return to


def _flipped(recording: Recording, x: Tensor, dims: Sequence[int]) -> Tensor:
    recording.copy(made := recording._track_result(x.flip(tuple(dims))), x, dims)
    return made


def _padded(recording: Recording, x: Tensor, widths: Sequence[int], value: float = 0) -> Tensor:
    sides = [(0, 0)] * (x.dim() - len(widths) // 2) + list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    made = recording._track_result(torch.constant_pad_nd(x, tuple(widths), value))
    recording.copy(made, torch.full((), value, dtype=x.dtype))
    inside, kept = made, x
    for dim, (length, (before, after)) in enumerate(zip(x.shape, sides, strict=True)):
        kept = kept.narrow(dim, max(-before, 0), length - max(-before, 0) - max(-after, 0))
        inside = inside.narrow(dim, max(before, 0), kept.shape[dim])
    recording.copy(inside, kept)
    return made


def _joined(recording: Recording, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    made, place = recording._track_result(torch.cat(tuple(tensors), dim)), 0
    for x in tensors:
        if x.shape == (0,) and made.dim() > 1:  # torch.cat passes over it
            continue
        recording.copy(made.narrow(dim, place, x.shape[dim]), x)
        place += x.shape[dim]
    return made


def _stacked(recording: Recording, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    made = recording._track_result(torch.stack(tuple(tensors), dim))
    for index, x in enumerate(tensors):
        recording.copy(made.select(dim, index), x)
    return made


def _rolled(recording: Recording, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        raise NotRecordableError("a roll of all elements in a row")
    pieces = [(x, made := recording._track_result(x.roll(tuple(shifts), tuple(dims))))]
    for shift, dim in zip(shifts, dims, strict=True):
        length = x.shape[dim]
        shift = shift % length if length else 0
        parts = ((0, length - shift, shift), (length - shift, shift, 0))  # from where, how many, to where
        pieces = [
            (source.narrow(dim, start, count), to.narrow(dim, end, count))
            for source, to in pieces
            for start, count, end in parts
            if count
        ]
    for source, to in pieces:
        recording.copy(to, source)
    return made


def _restrided(
    recording: Recording, x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    if offset is not None and x.untyped_storage().data_ptr() not in recording._allocated:
        raise NotRecordableError("a view by its place in memory, which is another one in each call")
    return x.as_strided(size, stride, offset)


def _by_table(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def look_up(recording: Recording, x: Tensor, *args: Any) -> Tensor:
        if x.dtype not in (torch.uint8, torch.int8):
            raise NotRecordableError("an operator on numbers that are no bytes")
        entries = function(torch.arange(256, dtype=torch.int32).to(torch.uint8).view(x.dtype), *args)
        recording._read(iter((x, entries)))
        return recording._track_result(torch.ops.fxquant.table.default(x, entries))

    return look_up


def _allocating(func: Any) -> Callable[..., Tensor]:
    return lambda recording, *args, **kwargs: recording._track_result(func(*args, **kwargs))


_aten = torch.ops.aten
TRANSLATED: Mapping[Any, Callable[..., Any]] = {
    _aten.clone.default: _copied,
    _aten.copy_.default: _copied_into,
    _aten.constant_pad_nd.default: _padded,
    _aten.roll.default: _rolled,
    _aten.flip.default: _flipped,
    _aten.cat.default: _joined,
    _aten.stack.default: _stacked,
    _aten.as_strided.default: _restrided,
    _aten._unsafe_view.default: lambda recording, x, size: x.view(size),
    _aten.bitwise_xor.Scalar: _by_table(torch.bitwise_xor),
    _aten.bitwise_not.default: _by_table(torch.bitwise_not),
    **{
        func: _allocating(func)
        for func in (
            _aten.empty.memory_format,
            _aten.empty_strided.default,
            _aten.empty_like.default,
            _aten.new_empty.default,
            _aten.new_empty_strided.default,
        )
    },
}
"""Operators of torch -> how they are recorded: they move bytes, or look one up for each. Each runs itself first: its
result, over which the recorded copies write, lies in memory as torch would have it."""
