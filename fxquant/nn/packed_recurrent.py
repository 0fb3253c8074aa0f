"""The matrices of a recurrent layer in packed order, and what multiplies by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.fake_quantize.converted import choice_arguments
from fxquant.graph.recurrent import RecurrentShape, split_rows, split_weight
from fxquant.kernels import quantize
from fxquant.kernels.conv.packing import PackedWeight, zero_point_correction
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.linear.dynamic_linear import DynamicLinear
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.kernels.quantize.quantize import reference as quantize_reference
from fxquant.kernels.recurrent.gates import MODES
from fxquant.kernels.recurrent.recurrent_steps import recurrent_steps
from fxquant.kernels.recurrent.recurrent_steps import reference as steps_reference
from fxquant.observers.qparams import middle
from fxquant.plan.spec import Dynamic, QParams

Results = tuple[Tensor, Tensor, Tensor]
"""Hidden states of all steps, and the last hidden and cell states."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in packed order, with what its products need beside quantized values."""

    packed: PackedWeight
    correction: Tensor
    scale: Tensor

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor) -> PackedMatrix:
        """Pack int8 [rows, columns] with its scale, float32 [rows]."""
        weight = weight.contiguous()
        return cls(PackedWeight.of(weight), zero_point_correction(weight, torch.uint8, 1), scale.contiguous())

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.packed.values, self.correction, self.scale


@dataclass(frozen=True, slots=True)
class PackedDirection:
    """Computes one direction of one layer. Several threads may call it."""

    of_input: DynamicLinear | NativeLinear
    of_hidden: PackedMatrix
    bias: Tensor
    """float32, what is added to the products of hidden states."""
    projection: PackedMatrix | None
    mode: int
    x: Dynamic | QParams
    """How inputs and hidden states are quantized."""

    def products(self, x: Tensor, by_reference: bool) -> Tensor:
        """Multiply the input for all steps at once: float32 [steps, rows, products].

        Args:
            x: float [steps, rows, features].
            by_reference: Run the references of the operators in their place.
        """
        if isinstance(self.of_input, DynamicLinear):
            return self.of_input.reference(x) if by_reference else self.of_input(x)
        assert isinstance(self.x, QParams)
        scheme = self.x.scheme
        arguments = (self.x.scale, self.x.zero_point, scheme.quant_min, scheme.quant_max, scheme.dtype)
        if by_reference:
            return self.of_input.reference(quantize_reference(x, *arguments))
        return self.of_input(quantize(x, *arguments))

    def run(
        self, x: Tensor, hidden: Tensor, cell: Tensor, counts: list[int] | None, reverse: bool, by_reference: bool
    ) -> Results:
        """Compute all steps.

        Args:
            x: float [steps, rows, features].
            hidden: float [rows, outputs], the first hidden states.
            cell: float [rows, hidden], or without columns where there is no cell state.
            counts: How many rows take part in each step; None: all.
            reverse: The last step comes first.
            by_reference: Run the references of the operators in their place.
        """
        of_states = (hidden.float(), cell.float(), counts or [], reverse, self.mode)
        projection = (None, None, None) if self.projection is None else self.projection.arguments
        matrices = (*self.of_hidden.arguments, self.bias, *projection)
        steps = steps_reference if by_reference else recurrent_steps
        return steps(self.products(x, by_reference), *of_states, *matrices, *self._of_qparams())

    def _of_qparams(self) -> tuple[Any, ...]:
        """Return the arguments that say how hidden states are quantized."""
        scheme = self.x.scheme
        if isinstance(self.x, Dynamic):
            measured: tuple[Any, ...] = (True, 1.0, 0, self.x.eps)
        else:
            measured = (False, self.x.scale.item(), int(self.x.zero_point.item()), 0.0)
        centre = middle(scheme) if scheme.symmetric else None
        return (*measured, scheme.quant_min, scheme.quant_max, centre, scheme.dtype)


@dataclass(frozen=True, slots=True)
class PackedRecurrent:
    """Holds all directions of all layers."""

    directions: tuple[PackedDirection, ...]
    unpacked: Callable[[], Tensor]
    """Gives the weight again."""

    @classmethod
    def of(
        cls, shape: RecurrentShape, weight: Tensor, scale: Tensor, bias: Tensor | None, x: Dynamic | QParams
    ) -> PackedRecurrent:
        """Pack a layer.

        Args:
            shape: Of the layer.
            weight: int8, the matrices one below the other, zero point 0.
            scale: float32 [rows of the weight], or [1].
            bias: float32 [rows of the weight], or None.
            x: How inputs and hidden states are quantized.
        """
        scale = scale.expand(len(weight))
        biases = split_rows(torch.zeros_like(scale) if bias is None else bias, shape)
        directions = []
        for matrices, scales, added in zip(split_weight(weight, shape), split_rows(scale, shape), biases, strict=True):
            of_input = _of_input(matrices[0].contiguous(), scales[0], added[0].contiguous(), x)
            others = [PackedMatrix.of(*pair) for pair in zip(matrices[1:], scales[1:], strict=True)]
            projection = others[1] if len(others) > 1 else None
            one = PackedDirection(of_input, others[0], added[1].contiguous(), projection, MODES[shape.mode], x)
            directions.append(one)
        return cls(tuple(directions), _Unpacking(tuple(directions), weight.shape))


def _of_input(weight: Tensor, scale: Tensor, bias: Tensor, x: Dynamic | QParams) -> DynamicLinear | NativeLinear:
    """Return what multiplies the input of a direction: float values, or values quantized with these qparams."""
    if isinstance(x, Dynamic):
        return DynamicLinear(weight, scale, bias, choice_arguments(x))
    x_scale, zero_point = x.scale.item(), int(x.zero_point.item())
    epilogue = Epilogue(x_scale=x_scale, weight_scale=scale, bias=bias, dtype=torch.float32)
    return NativeLinear(weight, x.scheme.dtype, zero_point, epilogue)


@dataclass(frozen=True, slots=True)
class _Unpacking:
    """Puts the matrices one below the other again."""

    directions: tuple[PackedDirection, ...]
    shape: torch.Size

    def __call__(self) -> Tensor:
        first = self.directions[0].of_hidden.packed.values
        with torch.inference_mode(False), torch.no_grad():  # it becomes the buffer of a module, which is written to
            weight, row = first.new_zeros(self.shape), 0
            for direction in self.directions:
                matrices = [direction.of_input.unpacked(), direction.of_hidden.packed.unpacked()]
                if direction.projection is not None:
                    matrices.append(direction.projection.packed.unpacked())
                for matrix in matrices:
                    weight[row : row + len(matrix), : matrix.shape[1]] = matrix
                    row += len(matrix)
        return weight
