"""Float layers with a quantized weight: simulated in float, or stored as integers.

Each has the torch class that it stands for as a base, with all its arguments, and runs the ``forward`` of that class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError
from fxquant.fake_quantize.converted import is_calibrated
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.fake_quantize.qparams import from_integers
from fxquant.graph.state_values import check_entries, check_integers, check_qparams
from fxquant.nn.computed import WithTensors
from fxquant.nn.folding import along_outputs
from fxquant.nn.recomputed import recomputed
from fxquant.nn.simulated_recurrent import DequantizedMatrices, FakeQuantizedMatrices
from fxquant.observers.base import cast_dtype, keeping_dtype
from fxquant.plan.spec import QScheme

FLOAT_BIAS = "float_bias"
"""Buffer of a layer whose bias makes up for its rounded weight: the bias that it had before. Not part of the state."""


class WithWeight(WithTensors):
    """A layer as its own ``forward`` sees it, with another weight, and another bias where one is given."""

    def __init__(self, layer: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(layer, {"weight": weight} if bias is None else {"weight": weight, "bias": bias})


class QuantizedWeightLayer(nn.Module):
    """Runs the ``forward`` of ``torch_class`` with ``effective_weight`` in place of ``weight``."""

    torch_class: type[nn.Module]
    weight: Tensor

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.torch_class.forward(WithWeight(self, self.effective_weight(input)), input, *args, **kwargs)

    def effective_weight(self, input: Tensor) -> Tensor:
        """Return the weight to multiply ``input`` with: float, of the shape of ``weight``."""
        raise NotImplementedError(f"{type(self).__name__}.effective_weight")


class FakeQuantizedWeight(QuantizedWeightLayer):
    """``weight`` is a trainable float parameter, and goes through ``weight_fake_quant`` in each forward.

    ``forward`` takes ``weight`` and ``bias`` where these are computed of parameters that lie elsewhere; then the layer
    holds none. Where a batch norm follows that will be folded into the weight, ``forward`` takes its ``factor``: the
    weight is then quantized as it will be, times the factor, and divided by it again.
    """

    weight_fake_quant: nn.Module
    output_axis: int
    """Dimension of the weight that counts the output channels."""

    def forward(
        self,
        input: Tensor,
        *args: Any,
        factor: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        fake_quant, weight = self.weight_fake_quant, self.weight if weight is None else weight
        if isinstance(fake_quant, FakeQuantize) and fake_quant.rounds_plainly(factor, self.output_axis):
            rounding = fake_quant.rounding_of(weight, factor)
            rounded = rounding(weight, factor)
            kept, kept_factor = weight.detach(), None if factor is None else factor.detach()
            with recomputed(rounded, weight, lambda: rounding(kept, kept_factor)):
                return self.torch_class.forward(WithWeight(self, rounded, bias), input, *args, **kwargs)
        if factor is None:
            rounded = fake_quant(weight)
        else:
            along = along_outputs(factor, WithWeight(self, weight), self.output_axis).to(weight.dtype)
            rounded = fake_quant(weight * along) / along
        return self.torch_class.forward(WithWeight(self, rounded, bias), input, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        check_entries(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def unrounded(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return what the float layer gives: the weight as it is, and the bias that it had before it was corrected."""
        layer = WithWeight(self, self.weight, self._buffers.get(FLOAT_BIAS))
        return self.torch_class.forward(layer, input, *args, **kwargs)


class DequantizedWeight(QuantizedWeightLayer):
    """``weight`` is a buffer of integers, turned to ``weight_dtype`` in each forward.

    ``weight_dtype`` is that of the float weight that it was, and follows when the layer is cast.
    Buffers ``weight_scale`` float32 and ``weight_zero_point`` int32, [1], [C] or [C, groups], are its qparams.
    """

    weight_scale: Tensor
    weight_zero_point: Tensor
    weight_scheme: QScheme
    weight_dtype: torch.dtype
    weight_is_known: bool

    def effective_weight(self, input: Tensor) -> Tensor:
        if not self.weight_is_known:
            raise CalibrationError(
                "this layer was converted without calibration, so the qparams of its weight are unknown",
                got=f"weight_scale = nan, {self.weight_scheme}",
                hint="calibrate before convert, or load a state dict that was saved after calibration",
            )
        weight = from_integers(self.weight, self.weight_scale, self.weight_zero_point, self.weight_scheme)
        return weight.to(self.weight_dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, weight: {self.weight_scheme}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DequantizedWeight:
        scale = keeping_dtype(fn)(self.weight_scale)
        super()._apply(fn, recurse)
        self.weight_scale = scale
        self.weight_dtype = cast_dtype(fn, self.weight_dtype, scale)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        check_integers(state_dict, prefix + "weight", self.weight.dtype, self.weight_scheme)
        check_qparams(state_dict, prefix + "weight_scale", prefix + "weight_zero_point", self.weight_scheme)
        check_entries(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.weight_is_known = is_calibrated(self.weight_scale)


class FakeQuantizedLinear(FakeQuantizedWeight, nn.Linear):
    torch_class = nn.Linear


class FakeQuantizedConv1d(FakeQuantizedWeight, nn.Conv1d):
    torch_class = nn.Conv1d


class FakeQuantizedConv2d(FakeQuantizedWeight, nn.Conv2d):
    torch_class = nn.Conv2d


class FakeQuantizedConv3d(FakeQuantizedWeight, nn.Conv3d):
    torch_class = nn.Conv3d


class FakeQuantizedConvTranspose1d(FakeQuantizedWeight, nn.ConvTranspose1d):
    torch_class = nn.ConvTranspose1d


class FakeQuantizedConvTranspose2d(FakeQuantizedWeight, nn.ConvTranspose2d):
    torch_class = nn.ConvTranspose2d


class FakeQuantizedConvTranspose3d(FakeQuantizedWeight, nn.ConvTranspose3d):
    torch_class = nn.ConvTranspose3d


class FakeQuantizedEmbedding(FakeQuantizedWeight, nn.Embedding):
    torch_class = nn.Embedding


class FakeQuantizedEmbeddingBag(FakeQuantizedWeight, nn.EmbeddingBag):
    torch_class = nn.EmbeddingBag


class FakeQuantizedRecurrent(FakeQuantizedMatrices, FakeQuantizedWeight):
    """``weight`` is made of several parameters, and values inside are rounded, too."""


class FakeQuantizedLSTM(FakeQuantizedRecurrent, nn.LSTM):
    torch_class = nn.LSTM


class FakeQuantizedGRU(FakeQuantizedRecurrent, nn.GRU):
    torch_class = nn.GRU


class FakeQuantizedRNN(FakeQuantizedRecurrent, nn.RNN):
    torch_class = nn.RNN


class FakeQuantizedLSTMCell(FakeQuantizedRecurrent, nn.LSTMCell):
    torch_class = nn.LSTMCell


class FakeQuantizedGRUCell(FakeQuantizedRecurrent, nn.GRUCell):
    torch_class = nn.GRUCell


class FakeQuantizedRNNCell(FakeQuantizedRecurrent, nn.RNNCell):
    torch_class = nn.RNNCell


class DequantizedLinear(DequantizedWeight, nn.Linear):
    torch_class = nn.Linear


class DequantizedConv1d(DequantizedWeight, nn.Conv1d):
    torch_class = nn.Conv1d


class DequantizedConv2d(DequantizedWeight, nn.Conv2d):
    torch_class = nn.Conv2d


class DequantizedConv3d(DequantizedWeight, nn.Conv3d):
    torch_class = nn.Conv3d


class DequantizedConvTranspose1d(DequantizedWeight, nn.ConvTranspose1d):
    torch_class = nn.ConvTranspose1d


class DequantizedConvTranspose2d(DequantizedWeight, nn.ConvTranspose2d):
    torch_class = nn.ConvTranspose2d


class DequantizedConvTranspose3d(DequantizedWeight, nn.ConvTranspose3d):
    torch_class = nn.ConvTranspose3d


class DequantizedEmbedding(DequantizedWeight, nn.Embedding):
    torch_class = nn.Embedding


class DequantizedEmbeddingBag(DequantizedWeight, nn.EmbeddingBag):
    torch_class = nn.EmbeddingBag


class DequantizedLSTM(DequantizedMatrices, DequantizedWeight, nn.LSTM):
    torch_class = nn.LSTM


class DequantizedGRU(DequantizedMatrices, DequantizedWeight, nn.GRU):
    torch_class = nn.GRU


class DequantizedRNN(DequantizedMatrices, DequantizedWeight, nn.RNN):
    torch_class = nn.RNN


class DequantizedLSTMCell(DequantizedMatrices, DequantizedWeight, nn.LSTMCell):
    torch_class = nn.LSTMCell


class DequantizedGRUCell(DequantizedMatrices, DequantizedWeight, nn.GRUCell):
    torch_class = nn.GRUCell


class DequantizedRNNCell(DequantizedMatrices, DequantizedWeight, nn.RNNCell):
    torch_class = nn.RNNCell
