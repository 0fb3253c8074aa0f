"""``fxquant::recurrent_steps``: all steps of one direction of a recurrent layer, whose matrices are int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import STORED, check_qparams
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_count, check_dtype, check_limits, check_zero_points
from fxquant.kernels.conv.packing import PackedLayout, unpack_weight
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.fake_quantize.moving_average_qparams import reference as measure
from fxquant.kernels.linear.reference import linear_reference
from fxquant.kernels.quantize.quantize import reference as quantize
from fxquant.kernels.recurrent.gates import GATES, LSTM, RELU, advance
from fxquant.kernels.recurrent.sequence import State, run_steps

LARGEST = torch.finfo(torch.float32).max

Result = tuple[Tensor, Tensor, Tensor]


@dataclass(eq=False, repr=False)
class RecurrentStepsCall(Call[Result]):
    """Run all steps of one direction of a recurrent layer, given the products of its inputs.

    Each step quantizes the hidden states of the rows that take part, multiplies them as ``fxquant::linear`` does,
    which gives float values, and applies the gates in float32, as :mod:`fxquant.kernels.recurrent.gates` defines them.
    With ``measured`` the range of these states chooses their qparams, as ``fxquant::moving_average_qparams`` does.
    A projection quantizes what the gates give in the same way, and multiplies that.

    Returns:
        The hidden states of all steps, float32 [steps, rows, outputs], 0 where a row takes no part; the last hidden
        states [rows, outputs]; the last cell states, of the shape of ``cell``.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it.

    Source:
        ``torch.nn.LSTM``, ``torch.nn.GRU`` and ``torch.nn.RNN``.
    """

    op: ClassVar[str] = "fxquant::recurrent_steps"
    results: ClassVar[str] = "(Tensor, Tensor, Tensor)"

    of_input: Tensor
    """float32 [steps, rows, gates * hidden]: the products of the input, with their bias."""
    hidden: Tensor
    """float32 [rows, outputs]."""
    cell: Tensor
    """float32 [rows, hidden] of an LSTM, else [rows, 0]."""
    counts: Sequence[int]
    """How many rows take part in each step, descending from ``rows``; empty: all in each."""
    reverse: bool
    """The last step comes first."""
    mode: int
    """0 (LSTM), 1 (GRU), 2 (tanh) or 3 (ReLU)."""
    weight: Tensor
    """int8 [gates * hidden, outputs], packed by :func:`~fxquant.kernels.conv.packing.pack_weight`."""
    correction: Tensor
    """int32 [gates * hidden]: minus the sum of each row of the weight."""
    weight_scale: Tensor
    """float32 [gates * hidden]."""
    bias: Tensor
    """float32 [gates * hidden]."""
    projection: Tensor | None
    """int8 [outputs, hidden], packed, of an LSTM; this and the next two: all or none."""
    projection_correction: Tensor | None
    projection_scale: Tensor | None
    measured: bool
    """Whether each step chooses the qparams of the states; else they are the next two."""
    scale: float
    zero_point: int
    eps: float
    """Smallest scale that a step chooses."""
    quant_min: int
    quant_max: int
    middle: int | None
    """Zero point of symmetric qparams; None: a step chooses the zero point too."""
    dtype: torch.dtype
    """uint8 or int8: how the states are stored."""

    def check(self) -> None:
        """Check the arguments."""
        # Tensors and mode.
        op = self.op
        for name, values, dims in (("of_input", self.of_input, 3), ("hidden", self.hidden, 2), ("cell", self.cell, 2)):
            check_dtype(op, name, values, (torch.float32,))
            if values.dim() != dims:
                raise KernelError(
                    f"{op}: {name} has the wrong shape", got=list(values.shape), expected=f"{dims} dimensions"
                )
        if not 0 <= self.mode <= RELU:
            raise KernelError(f"{op}: mode is out of range", got=self.mode, expected="0 to 3")
        # Sizes that follow from each other.
        steps, rows, products = self.of_input.shape
        size, outputs = products // GATES[self.mode], self.hidden.shape[1]
        if products % GATES[self.mode] or (self.projection is None and outputs != size):
            raise KernelError(f"{op}: of_input has the wrong shape", got=list(self.of_input.shape), expected=outputs)
        if self.hidden.shape[0] != rows:
            raise KernelError(f"{op}: hidden has the wrong shape", got=list(self.hidden.shape), expected=[rows])
        wanted = [rows, size if self.mode == LSTM else 0]
        if list(self.cell.shape) != wanted:
            raise KernelError(f"{op}: cell has the wrong shape", got=list(self.cell.shape), expected=wanted)
        self._check_counts(steps, rows)
        # Weight, bias and projection.
        self._check_weight("", self.weight, self.correction, self.weight_scale, products, outputs)
        check_dtype(op, "bias", self.bias, (torch.float32,))
        check_count(op, "bias", self.bias, products)
        given = [each is not None for each in (self.projection, self.projection_correction, self.projection_scale)]
        if any(given):
            if not all(given) or self.mode != LSTM:
                raise KernelError(f"{op}: projection is not whole", got=given, expected="all three, of an LSTM")
            assert self.projection is not None and self.projection_correction is not None  # noqa: PT018
            assert self.projection_scale is not None
            of = (self.projection, self.projection_correction, self.projection_scale)
            self._check_weight("projection_", *of, outputs, size)
        self._check_qparams()

    def _check_counts(self, steps: int, rows: int) -> None:
        counts = self.counts
        if not len(counts):
            return
        falling = all(a >= b for a, b in zip([rows, *counts], counts, strict=False))
        if len(counts) != steps or not falling or counts[-1] < 0:
            raise KernelError(
                f"{self.op}: counts is out of range",
                got=list(counts),
                expected=f"{steps} numbers, descending from {rows}",
            )

    def _check_weight(
        self, prefix: str, weight: Tensor, correction: Tensor, scale: Tensor, rows: int, columns: int
    ) -> None:
        op, packed = self.op, PackedLayout.of(rows, columns, ()).shape
        name = prefix.removesuffix("_") or "weight"
        check_dtype(op, name, weight, (torch.int8,))
        if list(weight.shape) != packed:
            raise KernelError(
                f"{op}: {name} has the wrong shape",
                got=list(weight.shape),
                expected=f"{packed}, as pack_weight gives it",
            )
        check_dtype(op, f"{prefix}correction", correction, (torch.int32,))
        check_count(op, f"{prefix}correction", correction, rows)
        named = f"{prefix or 'weight_'}scale"
        check_dtype(op, named, scale, (torch.float32,))
        check_count(op, named, scale, rows)

    def _check_qparams(self) -> None:
        check_dtype(self.op, "dtype", self.dtype, STORED)
        check_limits(self.op, self.quant_min, self.quant_max, self.dtype)
        if self.middle is not None:
            check_zero_points(self.op, self.middle, self.quant_min, self.quant_max)
        if not abs(self.eps) <= LARGEST:
            raise KernelError(f"{self.op}: eps is out of range", got=f"{self.eps:g}", expected="a finite float32")
        if not self.measured:
            check_qparams(self.op, "", self.scale, self.zero_point, self.dtype)

    def empty_result(self) -> Result:
        self.check()
        steps, rows, _ = self.of_input.shape
        outputs = self.of_input.new_empty([steps, rows, self.hidden.shape[1]])
        return outputs, torch.empty_like(self.hidden), torch.empty_like(self.cell)

    def reference(self) -> Result:
        self.check()
        steps, _, products = self.of_input.shape
        outputs = self.hidden.shape[1]
        if not steps:
            return self.of_input.new_empty([0, *self.hidden.shape]), self.hidden.clone(), self.cell.clone()
        weight, projection = unpack_weight(self.weight, products, outputs, ()), self.projection
        size = products // GATES[self.mode]
        onto = None if projection is None else unpack_weight(projection, outputs, size, ())

        def step(of_input: Tensor, hidden: Tensor, cell: Tensor) -> State:
            of_hidden = self._product(hidden, weight, self.weight_scale, self.bias)
            next_hidden, next_cell = advance(self.mode, of_input, of_hidden, hidden, cell)
            if onto is not None and self.projection_scale is not None:
                next_hidden = self._product(next_hidden, onto, self.projection_scale, next_hidden.new_zeros(outputs))
            return next_hidden, next_cell

        counts = list(self.counts) if len(self.counts) else None
        y, hidden, cell = run_steps(self.of_input, self.hidden, self.cell, counts, self.reverse, step)
        return y, hidden.clone(), cell.clone()

    def _product(self, x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor) -> Tensor:
        if not x.numel():
            return x.new_zeros([len(x), len(weight)]) + bias
        scale, zero_point = self.scale, self.zero_point
        if self.measured:
            unseen = torch.full((), torch.inf, device=x.device)
            limits = (self.quant_min, self.quant_max, self.middle)
            chosen = measure(x, unseen, -unseen, None, 1.0, self.eps, *limits)
            scale, zero_point = chosen[2].item(), int(chosen[3].item())
        of_scale, of_zero = (
            x.new_tensor([scale]),
            torch.tensor([zero_point], dtype=torch.int32, device=x.device),
        )
        q = quantize(x, of_scale, of_zero, self.quant_min, self.quant_max, self.dtype)
        epilogue = Epilogue(x_scale=scale, weight_scale=weight_scale, bias=bias, dtype=torch.float32)
        return linear_reference(q, zero_point, weight, torch.zeros_like(of_zero), epilogue)


recurrent_steps, reference = define_operator(RecurrentStepsCall)
