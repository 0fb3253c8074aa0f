"""Chooses qparams for a range with torch.ao's answers, and asks the methods that a derived class has of its own."""

from typing import Any

import torch
from torch import Tensor

from fxquant.compat.partial import WithArgs
from fxquant.errors import warn
from fxquant.observers.qparams import choose_qparams, middle
from fxquant.plan.spec import QParams, QScheme

# No ``from __future__ import annotations`` here: TorchScript reads the annotations of modules as they stand.


def warn_unseen() -> None:
    """Warn in the words of torch.ao that an observer has seen nothing."""
    warn("must run observer before calling calculate_qparams. Returning default scale and zero point")


def qparams_of_answer(scheme: QScheme, answer: tuple[Any, Any]) -> QParams:
    """Make qparams of what a ``calculate_qparams`` answers."""
    kind = torch.float32 if scheme.float_qparams else torch.int32
    scale, zero_point = map(torch.as_tensor, answer)
    scale, zero_point = scale.detach().float().reshape(-1), zero_point.detach().to(kind).reshape(-1)
    return QParams(scheme, *torch.broadcast_tensors(scale, zero_point))


class Range(WithArgs):
    """Mixed into observers of ranges: one that has seen nothing warns, and answers with scale 1 and zero point 0.

    A derived class may have ``calculate_qparams`` or ``_calculate_qparams`` of its own: what is quantized has their
    answers, as in torch.ao.

    Where unsigned symmetric values are halved by ``reduce_range``, ``calculate_qparams`` answers with torch.ao's zero
    point 128, outside of the limits. What is quantized has the middle of these, as ``qparams`` says.
    """

    min_val: Tensor
    max_val: Tensor
    eps: Tensor
    middle_of_byte: bool
    symmetric_by_name: bool
    wide: bool
    scheme: Any
    qparams_in_script: Any

    def answer_as_torch(self, scheme: QScheme, dtype: torch.dtype, reduce_range: bool, is_custom: bool) -> None:
        """Keep in what the answers of ``calculate_qparams`` are torch.ao's alone.

        Args:
            scheme: What is measured for.
            dtype: What was named.
            reduce_range: Whether limits are halved.
            is_custom: Whether limits were given.
        """
        self.symmetric_by_name = scheme.symmetric
        self.middle_of_byte = reduce_range and scheme.symmetric and not scheme.signed and scheme.bits == 8
        self.wide = dtype in (torch.int32, getattr(torch, "qint32", torch.int32)) and not is_custom

    @torch.jit.export
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return ``(scale, zero_point)`` for what was seen."""
        if not torch.jit.is_scripting():
            choose = type(self)._calculate_qparams
            if choose is not Range._calculate_qparams:
                return choose(self, *self.chosen_range())
        if self.min_val.numel() == 0 or bool((self.min_val > self.max_val).any()):
            if not torch.jit.is_scripting():
                warn_unseen()
            return (
                torch.ones(1, device=self.min_val.device),
                torch.zeros(1, dtype=torch.int32, device=self.min_val.device),
            )
        if torch.jit.is_scripting():
            scale, zero_point = self.qparams_in_script()
        else:
            # A class of the user's own may have qparams(), too, which fxquant's observers are derived by.
            found = self.own_qparams() if type(self).qparams is Range.qparams else self.qparams()
            scale, zero_point = found.scale, found.zero_point
        return self.as_torch(scale, zero_point, self.min_val, self.max_val)

    def _calculate_qparams(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        """Choose ``(scale, zero_point)`` for a range, as classes derived from torch.ao's ask for."""
        if min_val.numel() == 0 or bool((min_val > max_val).any()):
            warn_unseen()
            return torch.ones(1, device=min_val.device), torch.zeros(1, dtype=torch.int32, device=min_val.device)
        found = choose_qparams(min_val, max_val, self.scheme, self.eps)
        return self.as_torch(found.scale, found.zero_point, min_val, max_val)

    def as_torch(self, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return qparams of a range in the form of torch.ao's answers."""
        if self.symmetric_by_name:
            zero_point = zero_point.to(torch.int64)  # as torch.ao's are
        if self.middle_of_byte:
            zero_point = torch.full_like(zero_point, 128)
        if self.wide:
            return self.qparams_of_32_bits(low, high)
        return scale, zero_point

    def qparams_of_32_bits(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        """Return qparams over 32 bits: observers of fxquant know 16, and nothing is quantized to more."""
        low, high = torch.clamp(min_val, max=0.0).reshape(-1), torch.clamp(max_val, min=0.0).reshape(-1)
        steps = float(2**32 - 1)
        if self.symmetric_by_name:
            scale = torch.max(torch.max(-low, high) / (steps / 2), self.eps)
            return scale, torch.zeros_like(scale).to(torch.int64)
        scale = torch.max((high - low) / steps, self.eps)
        zero_point = -float(2**31) - torch.round(low / scale)
        return scale, zero_point.clamp(-float(2**31), float(2**31 - 1)).to(torch.int64)

    def chosen_range(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the range that is going to be quantized."""
        return self.min_val, self.max_val

    def qparams(self) -> QParams:
        """Return what ``calculate_qparams`` of the class answers, where that is not the library's alone.

        Raises:
            CalibrationError: nothing was seen, and the class has no answer of its own.
        """
        kind = type(self)
        asks = kind.calculate_qparams is not Range.calculate_qparams
        if kind.qparams is not Range.qparams or not (asks or kind._calculate_qparams is not Range._calculate_qparams):
            return self.own_qparams()
        scale, zero_point = self.calculate_qparams()
        if self.middle_of_byte and bool((zero_point == 128).all()):
            zero_point = torch.full_like(zero_point, middle(self.scheme))
        return qparams_of_answer(self.scheme, (scale, zero_point))

    def own_qparams(self) -> QParams:
        """Choose qparams as the observers of fxquant do.

        Raises:
            CalibrationError: nothing was seen.
        """
        observer: Any = super()
        found: QParams = observer.qparams()
        return found
