"""Fake-quantize modules of a converted model, which observe nothing: the qparams are known, or each call chooses them
from its own values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.graph.state_values import check_qparams
from fxquant.kernels import moving_average_qparams
from fxquant.observers.base import keeping_dtype
from fxquant.observers.qparams import middle
from fxquant.plan.spec import Dynamic, QParams


class StaticFakeQuantize(nn.Module):
    """Rounds a tensor with fixed qparams; differentiable, straight-through.

    Buffers: ``scale`` float32 and ``zero_point`` int32 (float32 for ``float_qparams``), [1] per tensor, [C] per
    channel, [C, groups] per group. They keep their dtype when the model is cast, and can be loaded from a state dict.

    Args:
        qparams: Their tensors are copied. A NaN scale means "not calibrated yet": running raises then,
            until a state dict is loaded.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, qparams: QParams) -> None:
        super().__init__()
        self.scheme = qparams.scheme
        dtype = torch.float32 if qparams.scheme.float_qparams else torch.int32
        self.register_buffer("scale", qparams.scale.detach().to(torch.float32, copy=True))
        self.register_buffer("zero_point", qparams.zero_point.detach().to(dtype, copy=True))
        # A Python bool, since a branch on a tensor would wait for the GPU, and breaks torch.compile.
        self._calibrated = is_calibrated(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Fake-quantize ``x``, of any shape with the axis; the result has its shape, dtype and memory format.

        Raises:
            CalibrationError: the qparams are not known yet.
        """
        if not self._calibrated:
            raise CalibrationError(
                "this fake-quantize module was never calibrated, so its qparams are unknown",
                got=f"scale = nan, {self.scheme}",
                hint="calibrate before convert, or load a state dict that was saved after calibration",
            )
        return fake_quantize(x, self.scale, self.zero_point, self.scheme)

    def qparams(self) -> QParams:
        """Return the qparams that the buffers hold now."""
        return QParams(self.scheme, self.scale, self.zero_point)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StaticFakeQuantize:
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        check_qparams(state_dict, prefix + "scale", prefix + "zero_point", self.scheme)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._calibrated = is_calibrated(self.scale)

    def extra_repr(self) -> str:
        if self.scale.numel() == 1:
            return f"{self.scheme}, scale={self.scale.item():.4g}, zero_point={self.zero_point.item()}"
        return f"{self.scheme}, scale=[{self.scale.min().item():.4g}, {self.scale.max().item():.4g}]"


def is_calibrated(scale: Tensor) -> bool:
    """Tell whether every scale is known; on the meta device nothing is known, and nothing runs."""
    return scale.is_meta or not bool(scale.isnan().any())


def qparams_of(x: Tensor, policy: Dynamic) -> QParams:
    """Return qparams of the range of the finite values of ``x``, which holds at least one value.

    Without a finite value the scale is the smallest there is: what is no number saturates with any. Per token, ``x`` is
    [rows, values], and each row has qparams.
    """
    scheme, axis = policy.scheme, None if policy.per == "tensor" else 0
    shape = () if axis is None else x.shape[:1]
    unseen = torch.full(shape, torch.inf, dtype=torch.float32, device=x.device)
    _, _, scale, zero_point, _ = moving_average_qparams(
        x.detach(),
        unseen,
        -unseen,
        axis=axis,
        averaging_constant=1.0,
        eps=policy.eps,
        quant_min=scheme.quant_min,
        quant_max=scheme.quant_max,
        middle=middle(scheme) if scheme.symmetric else None,
    )
    return QParams(scheme if axis is None else replace(scheme, axis=axis), scale, zero_point)


def choice_arguments(policy: Dynamic) -> tuple[float, int, int, int | None, torch.dtype]:
    """Return what ``quantize_per_token`` takes beside its input: how each call chooses qparams."""
    scheme = policy.scheme
    symmetric = middle(scheme) if scheme.symmetric else None
    return policy.eps, scheme.quant_min, scheme.quant_max, symmetric, scheme.dtype


class DynamicFakeQuantize(nn.Module):
    """Fake-quantizes a tensor with qparams of its own range; differentiable, straight-through.

    It has no state. The range is that of the whole tensor: what a sample becomes depends on its batch. Per token, it is
    that of each row.

    Args:
        policy: Scheme, smallest scale, and whether rows have ranges of their own.
    """

    def __init__(self, policy: Dynamic) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, x: Tensor) -> Tensor:
        """Fake-quantize ``x``, float of any shape; the result has its shape, dtype and memory format."""
        if not x.numel():
            return x.clone()
        if self.policy.per == "token":
            rows = x.reshape(-1, x.shape[-1])
            rounded = self._rounded(rows).view(x.shape)
            return rounded if x.is_contiguous() else torch.empty_like(x).copy_(rounded)
        return self._rounded(x)

    def _rounded(self, x: Tensor) -> Tensor:
        qparams = qparams_of(x, self.policy)
        return fake_quantize(x, qparams.scale, qparams.zero_point, qparams.scheme)

    def extra_repr(self) -> str:
        return f"{self.policy}, per call"
