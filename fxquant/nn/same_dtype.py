"""Base of the modules that compute in the dtype of their result."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import InputError
from fxquant.nn.base import QuantizedModule
from fxquant.nn.weight import byte_qparams
from fxquant.plan.spec import QParams

HALF = 128
"""Distance between an int8 and the uint8 that takes its place."""


class SameDtypeModule(QuantizedModule):
    """Runs operators whose inputs and output share one dtype, on inputs that may come in the other one.

    uint8 and int8 grids of equal scale hold the same numbers, 128 steps apart. So an input of the other dtype than the
    output is moved over by flipping its highest bit, and its zero point with it: nothing is rounded.
    """

    y_dtype: torch.dtype
    """uint8 or int8: of the output, and of the arithmetic."""

    def add_same_dtype_qparams(self, role: str, qparams: QParams) -> None:
        """As :meth:`add_qparams`, refusing what does not fit a byte; ``y`` comes first.

        Raises:
            LoweringError: the grid is wider than a byte, or has more than one scale.
        """
        self.add_qparams(role, byte_qparams("the output" if role == "y" else f"input {role}", qparams))
        if role == "y":
            self.y_dtype = qparams.scheme.dtype

    def take(self, role: str, q: Tensor) -> Tensor:
        """The input of a role, in the dtype of the arithmetic.

        Raises:
            InputError: it is not stored as its grid says.
        """
        dtype = self._schemes[role].dtype
        if q.dtype != dtype:
            raise InputError(
                "a quantized operator got an input that it was not made for",
                at=self.unit or type(self).__name__,
                got=f"{role}: {q.dtype}",
                expected=dtype,
            )
        return q if dtype == self.y_dtype else (q.view(torch.uint8) ^ HALF).view(self.y_dtype)

    def numbers(self, role: str) -> tuple[float, int]:
        """Scale and zero point of a role, in the dtype of the arithmetic."""
        scale, zero_point = self.scalars(role)
        if self._schemes[role].dtype == self.y_dtype:
            return scale, zero_point
        return scale, zero_point + (HALF if self.y_dtype == torch.uint8 else -HALF)
