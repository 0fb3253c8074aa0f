"""Look-ups in a quantized table: its integers are stored, and only the rows that are asked for become float values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError, LoweringError
from fxquant.fake_quantize.qparams import to_integers
from fxquant.kernels import embedding, embedding_bag
from fxquant.kernels.embedding.embedding import reference as embedding_reference
from fxquant.kernels.embedding.embedding_bag import MODES
from fxquant.kernels.embedding.embedding_bag import reference as embedding_bag_reference
from fxquant.kernels.embedding.lookup import HALF_BITS, pack_halves
from fxquant.nn.base import FloatResult, QuantizedModule
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import QParams, QScheme


class QuantizedLookup(QuantizedModule):
    """Holds what both look-ups keep.

    Buffers: ``weight`` uint8 or int8 [rows, columns], or, of at most 4 bits, [rows, ceil(columns / 2)], two values in a
    byte; ``weight_scale`` float32 and ``weight_zero_point`` float32 or int32, [rows], or [1] for all rows.

    Args:
        layer: The float layer.
        weight: Qparams of its table: at most 8 bits, one for each row or one for all.

    Raises:
        LoweringError: other qparams.
    """

    weight: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor

    def __init__(self, layer: nn.Embedding | nn.EmbeddingBag, weight: QParams) -> None:
        super().__init__()
        scheme = weight.scheme
        axis = None if scheme.axis is None else scheme.axis % layer.weight.dim()
        if scheme.bits > 8 or axis not in (None, 0) or scheme.group_size is not None:
            raise LoweringError(
                "look-ups cannot take these qparams of a table",
                got=str(scheme),
                expected="at most 8 bits, one scale and zero point for each row (axis=0) or for all",
            )
        self.columns = layer.embedding_dim
        self.bits = HALF_BITS if scheme.bits <= HALF_BITS else 8
        self.float_result = FloatResult(layer.weight.dtype)
        rows = to_integers(layer.weight.detach(), weight.scale, weight.zero_point, scheme)
        self.register_buffer("weight", pack_halves(rows) if self.bits == HALF_BITS else rows.contiguous())
        self.add_qparams("weight", weight)

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedLookup:
        """Build the module of a unit, from its layer ``embedding``."""
        return cls(unit.modules["embedding"], unit.qparams["weight"])

    def _stored_in(self, name: str) -> QScheme | None:
        return None if self.bits == HALF_BITS else super()._stored_in(name)  # two values lie in a byte

    def pack(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, self.weight_scale, self.weight_zero_point.float()

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, {self.columns}, {super().extra_repr()}"


class QuantizedEmbedding(QuantizedLookup):
    """``(weight[i] - zero_point[i]) * scale[i]``: what the float layer gives for its fake-quantized table.

    Shape:
        int32 or int64 of any shape [...] to floats [..., columns].

    Raises:
        RuntimeError: an index is no row.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight, scale, zero_point = self._packed or self.packed()
        return self.finish_float_result(embedding(weight, scale, zero_point, input, self.bits, self.columns))

    def reference(self, *inputs: Tensor) -> Tensor:
        (indices,) = inputs
        weight, scale, zero_point = self.packed()
        return self.finish_float_result(
            embedding_reference(weight, scale, zero_point, indices, self.bits, self.columns)
        )


class QuantizedEmbeddingBag(QuantizedLookup):
    """Sum, mean or maximum of the rows of each bag, in float32: see ``fxquant.kernels.embedding.embedding_bag``.

    Called as ``nn.EmbeddingBag`` is, with indices [bags, n]; or with indices [n] and the offsets of bags.

    Raises:
        InputError: offsets with indices of two dimensions, or none with those of one.
        RuntimeError: an index is no row; offsets do not ascend; other dtypes or shapes.
    """

    def __init__(self, layer: nn.EmbeddingBag, weight: QParams) -> None:
        super().__init__(layer, weight)
        self.mode = layer.mode
        self.padding_idx = layer.padding_idx
        self.include_last_offset = layer.include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return self._by(embedding_bag, input, offsets, per_sample_weights)

    def reference(self, *inputs: Tensor) -> Tensor:
        return self._by(embedding_bag_reference, *inputs)

    def _by(
        self,
        operator: Callable[..., Tensor],
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        weights = None if per_sample_weights is None else per_sample_weights.float().reshape(-1)
        if per_sample_weights is not None and per_sample_weights.shape != input.shape:
            raise self._wrong_input("per_sample_weights", list(per_sample_weights.shape), list(input.shape))
        arguments: tuple[Any, ...] = (self.bits, self.columns, MODES.index(self.mode), weights, self.padding_idx)
        borders = self._borders(input, offsets)
        return self.finish_float_result(operator(*self.packed(), input.reshape(-1), borders, *arguments))

    def _borders(self, input: Tensor, offsets: Tensor | None) -> Tensor:
        """Return where bags begin, and where the last one ends."""
        if input.dim() == 2:
            if offsets is not None:
                raise self._wrong_input("offsets", f"some, with indices {list(input.shape)}", "none: each row is a bag")
            bags, length = input.shape
            return torch.arange(bags + 1, device=input.device) * length
        if input.dim() != 1 or offsets is None:
            got = f"{list(input.shape)}, offsets {'None' if offsets is None else list(offsets.shape)}"
            raise self._wrong_input("indices", got, "[bags, n], or [n] with offsets")
        if self.include_last_offset:
            return offsets
        return torch.cat([offsets, offsets.new_full((1,), input.numel())])

    def _wrong_input(self, argument: str, got: object, expected: object) -> InputError:
        return InputError(
            f"a quantized embedding bag got {argument} that do not fit",
            at=self.unit or type(self).__name__,
            got=got,
            expected=expected,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
