"""Float layers with a quantized weight: simulated in float, or stored as integers.

Each has the torch class that it stands for as a base, with all its arguments, and runs the ``forward`` of that class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError, InputError
from fxquant.fake_quantize.converted import StaticFakeQuantize, is_calibrated
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.graph.module_state import check_finite, check_integers, check_qparams
from fxquant.graph.query import canonical_type
from fxquant.nn.computed import WithTensors
from fxquant.nn.folding import along_outputs
from fxquant.observers.base import cast_dtype, keeping_dtype
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import QParams, QScheme

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
        check_finite(state_dict, prefix + "weight", prefix + "bias")
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
        check_finite(state_dict, prefix + "bias")
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


LAYERS: dict[type[nn.Module], tuple[type[FakeQuantizedWeight], type[DequantizedWeight]]] = {
    nn.Linear: (FakeQuantizedLinear, DequantizedLinear),
    nn.Conv1d: (FakeQuantizedConv1d, DequantizedConv1d),
    nn.Conv2d: (FakeQuantizedConv2d, DequantizedConv2d),
    nn.Conv3d: (FakeQuantizedConv3d, DequantizedConv3d),
    nn.ConvTranspose1d: (FakeQuantizedConvTranspose1d, DequantizedConvTranspose1d),
    nn.ConvTranspose2d: (FakeQuantizedConvTranspose2d, DequantizedConvTranspose2d),
    nn.ConvTranspose3d: (FakeQuantizedConvTranspose3d, DequantizedConvTranspose3d),
    nn.Embedding: (FakeQuantizedEmbedding, DequantizedEmbedding),
    nn.EmbeddingBag: (FakeQuantizedEmbeddingBag, DequantizedEmbeddingBag),
}
"""Torch class -> the same with a simulated weight, and with an integer one."""


def with_fake_quantized_weight(
    module: nn.Module, weight: QParams | nn.Module, output_axis: int = 0, *, share: bool = False
) -> FakeQuantizedWeight:
    """Return a copy of a layer that fake-quantizes its weight in each forward.

    Args:
        module: A linear layer or convolution of torch, or of a class derived from one that does not change
            ``forward``. Not changed.
        weight: The qparams, or a fake-quantize module to use as it is.
        output_axis: Dimension of the weight that counts the output channels.
        share: The copy holds the parameters of ``module`` themselves, not copies of them.

    Returns:
        A layer with the parameters ``weight`` and ``bias`` and the module ``weight_fake_quant``; gradients reach
        ``weight`` straight through the rounding. Hooks, training mode and the user's own attributes are kept.

    Raises:
        InputError: another kind of module.
    """
    layer = _copy_as(module, 0, share=share)
    layer.output_axis = output_axis
    layer.weight_fake_quant = StaticFakeQuantize(weight) if isinstance(weight, QParams) else weight
    return layer


def with_dequantized_weight(module: nn.Module, weight: QParams) -> DequantizedWeight:
    """Return a copy of a layer that stores its weight as integers.

    Args:
        module: As for ``with_fake_quantized_weight``.
        weight: The qparams.

    Returns:
        A layer with the buffers ``weight`` (``weight.scheme.dtype``), ``weight_scale`` and ``weight_zero_point``, and
        the parameter ``bias``.

    Raises:
        InputError: another kind of module.
    """
    layer = _copy_as(module, 1)
    values = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", to_integers(values, weight.scale, weight.zero_point, weight.scheme))
    layer.register_buffer("weight_scale", weight.scale.detach().float().clone())
    layer.register_buffer("weight_zero_point", weight.zero_point.detach().clone())
    layer.weight_scheme = weight.scheme
    layer.weight_dtype = values.dtype
    layer.weight_is_known = is_calibrated(weight.scale)
    return layer


def dequantized_linear(unit: UnitView) -> DequantizedWeight:
    """Build the module of a unit whose layer ``linear`` makes its float weight anew from integers in each call."""
    return with_dequantized_weight(unit.modules["linear"], unit.qparams["weight"])


def without_fake_quantized_weight(layer: FakeQuantizedWeight) -> nn.Module:
    """Return the plain layer of torch that trains in ``layer``, with the same parameters."""
    plain: Any = copy.copy(layer)
    plain._parameters, plain._modules = dict(layer._parameters), dict(layer._modules)
    del plain.weight_fake_quant, plain.output_axis
    plain.__class__ = layer.torch_class
    return plain


def _copy_as(module: nn.Module, form: int, *, share: bool = False) -> Any:
    forms = LAYERS.get(canonical_type(module) or type(module))
    if forms is None:
        raise InputError(
            "the weight of this kind of module cannot be quantized",
            got=type(module).__name__,
            expected=", ".join(kind.__name__ for kind in LAYERS) + ", or a class derived from one without own forward",
        )
    memo = {id(parameter): parameter for parameter in module.parameters()} if share else {}
    layer: Any = copy.deepcopy(module, memo)
    if "weight" not in layer._parameters:
        # A parametrization computes it: from here on it is what it was last.
        value = layer.weight.detach().clone()
        layer._modules.pop("parametrizations", None)
        layer.__class__ = forms[form]
        layer.weight = nn.Parameter(value)
    layer.__class__ = forms[form]
    return layer


class _View(NamedTuple):
    """Says how an operator looks at the tensor: a linear layer keeps it transposed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def _hooks_are_forbidden() -> bool:
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None
    )


def _as_it_is(saved: Any) -> Any:
    return saved


def recomputed(value: Tensor, source: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[Any]:
    """While this holds, autograd keeps no copy of ``value``, but calls ``make`` when it asks for it.

    Args:
        value: What operators in the block get, and would keep, as it is or as a view.
        source: The parameter that it is made of. If it changes before the backward pass, that raises, as autograd does.
        make: Gives ``value`` again, to the bit, and laid out alike.

    Compiled code does without: what is kept is then the compiler's choice. So do transforms of ``torch.func``, and
    blocks where hooks are forbidden.
    """
    if not (torch.is_grad_enabled() and value.requires_grad) or _hooks_are_forbidden():
        return nullcontext()
    storage, version = value.untyped_storage().data_ptr(), source._version

    outer: Any = torch._C._autograd._top_saved_tensors_default_hooks(
        True
    )  # checkpointing, offloading: theirs is the rest
    keep, give_back = outer or (_as_it_is, _as_it_is)

    def pack(tensor: Tensor) -> Any:
        if tensor.untyped_storage().data_ptr() != storage:
            return keep(tensor)
        return _View(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def unpack(saved: Any) -> Tensor:
        if not isinstance(saved, _View):
            return give_back(saved)
        if source._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a weight is at version {source._version}; expected version {version} instead"
            )
        with torch.no_grad():
            return make().as_strided(*saved)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
