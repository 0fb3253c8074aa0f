"""Memory that ends where it ends: what reads or writes one byte before or behind a tensor ends the process."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
_READ_WRITE, _NOTHING = 3, 0
_PRIVATE_ANONYMOUS = 0x22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Guarded:
    """Places tensors between pages that nobody may touch.

    Args:
        behind: Whether a tensor ends where such a page begins; or it begins where one ends.
    """

    def __init__(self, behind: bool) -> None:
        self.behind = behind
        self._regions: list[tuple[int, int]] = []

    def place(self, x: Tensor) -> Tensor:
        """The same values, sizes and strides; elements between them are 0xAA."""
        extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        size = extent * x.element_size()
        inner = max(1, -(-size // PAGE)) * PAGE
        begin = _libc.mmap(None, inner + 2 * PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        self._regions.append((begin, inner + 2 * PAGE))
        ctypes.memset(begin + PAGE, 0xAA, inner)
        for guard in (begin, begin + PAGE + inner):
            assert _libc.mprotect(guard, PAGE, _NOTHING) == 0
        if not size:
            return x
        at = begin + PAGE + (inner - size if self.behind else 0)
        flat = torch.frombuffer((ctypes.c_uint8 * size).from_address(at), dtype=torch.uint8).view(x.dtype)
        placed = flat.as_strided(x.shape, x.stride())
        for index in range(x.shape[0]) if x.dim() and 0 in x.stride()[:1] else ():
            placed[index].copy_(x[index])
        if not (x.dim() and 0 in x.stride()[:1]):
            placed.copy_(x)
        return placed

    def release(self) -> None:
        """Unmap all; no tensor that was placed may be used any more."""
        for begin, size in self._regions:
            _libc.munmap(begin, size)
        self._regions.clear()
