"""Every operator of the field, in every spelling, and what becomes of it: the units that run it, or why it stays float.

A row stands behind a layer, on an input of the rank given, and its result is the model's output. To add one, name it,
say its fate, and write down its spellings: functions of one tensor, or modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.graph.decompositions.composites import BROADCAST, DIAGONAL, MANY, SPELLING
from fxquant.measure.parity import measure_parity
from fxquant.patterns.floats import (
    CUMULATIVE,
    EXPONENTIALS,
    GIVES_INDICES,
    HAS_JUMPS,
    MASKED,
    NOT_FINITE,
    OVERLAPS,
    POWERS,
    QUOTIENT,
    SAMPLED,
    SIMILARITY,
    STEEP,
)
from tests.outputs import rounding_outputs
from tests.patterns.test_shape import MOVED
from tests.patterns.test_unary import FUNCTIONS

CLOSE = 30.0
"""dB that 8 bits reach behind a layer of 8 bits, if an operator neither jumps nor nearly cancels; errors of structure
leave less than 12."""
JUMPS = 18.0
"""Where a function jumps: values on the wrong side are wrong by all of the jump."""

GENERATOR = torch.Generator().manual_seed(0)
torch.manual_seed(0)  # the layers below are made once, and are the same whatever was imported before
X = {
    2: torch.randn(8, 12, generator=GENERATOR),
    3: torch.randn(2, 4, 12, generator=GENERATOR),
    4: torch.randn(2, 4, 6, 8, generator=GENERATOR),
    5: torch.randn(2, 4, 4, 6, 8, generator=GENERATOR),
}
LAYERS = {2: (nn.Linear, 12, ()), 3: (nn.Conv1d, 4, (1,)), 4: (nn.Conv2d, 4, (1,)), 5: (nn.Conv3d, 4, (1,))}
INDEX = torch.tensor([2, 0])
Spelling = Any
"""A module, a function of one tensor, or an ``Own``."""


@dataclass(frozen=True)
class Own:
    """A function that reads parameters of the model that it stands in."""

    body: Callable[[Any, Tensor], Any]


@dataclass(frozen=True)
class Row:
    """One operator."""

    name: str
    fate: str
    """Names of the units behind the layer's own, of which the last runs the operator; empty where the layer's own unit
    does. With a reason: none."""
    spellings: tuple[Spelling, ...]
    rank: int = 4
    reason: str = ""
    """Why one operator stays float."""
    least: float = CLOSE


def row(name: str, *spellings: Spelling, fate: str | None = None, rank: int = 4, least: float = CLOSE) -> Row:
    return Row(name, name if fate is None else fate, spellings, rank, "", least)


def stays(name: str, reason: str, *spellings: Spelling, rank: int = 4) -> Row:
    return Row(name, "", spellings, rank, reason)


class Behind(nn.Module):
    """A layer, and a reader behind it."""

    def __init__(self, reader: Spelling, rank: int) -> None:
        super().__init__()
        kind, width, kernel = LAYERS[rank]
        self.layer = kind(width, width, *kernel)
        self.function = None if isinstance(reader, nn.Module) else reader
        self.reader = reader if isinstance(reader, nn.Module) else None
        self.slope = nn.Parameter(torch.tensor([0.1, -0.3, 0.5, 2.0]))
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3) / 6)
        self.table = nn.Parameter(torch.randn(12, 12) / 4)
        self.bias = nn.Parameter(torch.randn(12) / 4)

    def forward(self, x: Tensor) -> Any:
        x = self.layer(x)
        if self.reader is not None:
            return self.reader(x)
        return self.function.body(self, x) if isinstance(self.function, Own) else self.function(x)


class Pair(nn.Module):
    """A module of two inputs that gets the same twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x.flip(1))


def conv(*arguments: Any, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(4, 6, *arguments, **options)


LAYER_ROWS = (
    row("conv1d", nn.Conv1d(4, 6, 3), nn.Conv1d(4, 6, 4, padding="same", dilation=2), rank=3, fate="conv"),
    row("conv1d modes", *(nn.Conv1d(4, 6, 3, padding=2, padding_mode=m) for m in ("reflect", "circular")), rank=3,
        fate="conv"),
    row("conv2d", conv(3), conv((2, 3), (2, 1), (1, 0), (1, 2)), conv(4, padding="same"), conv(3, groups=2),
        Own(lambda m, x: F.conv2d(x, m.weight, padding=1)), fate="conv"),
    row("conv2d modes", *(conv(3, padding=(1, 2), padding_mode=m) for m in ("reflect", "replicate", "circular")),
        conv(4, padding="same", padding_mode="reflect"), fate="conv"),
    row("conv3d", nn.Conv3d(4, 6, 2), nn.Conv3d(4, 6, (1, 2, 3), padding="same", dilation=(1, 2, 1)),
        nn.Conv3d(4, 6, 3, padding=1, padding_mode="circular"), rank=5, fate="conv"),
    row("conv_transpose1d", nn.ConvTranspose1d(4, 6, 4, 3, 1, 1), rank=3, fate="conv_transpose"),
    row("conv_transpose2d", nn.ConvTranspose2d(4, 6, 4, 2, 1),
        nn.ConvTranspose2d(4, 4, (2, 3), (2, 1), dilation=2, groups=4),
        Own(lambda m, x: F.conv_transpose2d(x, m.weight, stride=2)), fate="conv_transpose"),
    row("conv_transpose3d", nn.ConvTranspose3d(4, 6, 2, (1, 2, 3), groups=2), rank=5, fate="conv_transpose"),
    row("batch_norm", nn.BatchNorm2d(4), fate=""),
    row("linear", nn.Linear(8, 3), fate="linear"),
)  # fmt: skip

CLAMP_ROWS = (
    row("relu", nn.ReLU(), F.relu, torch.relu, lambda x: x.relu_(), fate=""),
    row("relu6", nn.ReLU6(), F.relu6, fate=""),
    row("hardtanh", nn.Hardtanh(-0.5, 0.7), lambda x: F.hardtanh(x, -0.5, 0.7), fate=""),
    row("clamp", lambda x: x.clamp(-0.5, 0.5), lambda x: torch.clip(x, max=0.5), fate=""),
    row("clamp_min", lambda x: x.clamp_min(-0.2), lambda x: torch.clamp_min(x, -0.2), fate=""),
    row("clamp_max", lambda x: x.clamp_max(0.2), lambda x: torch.clamp_max(x, 0.2), fate=""),
)

FUNCTION_ROWS = (
    row("sigmoid", nn.Sigmoid(), torch.sigmoid, torch.special.expit, lambda x: x.sigmoid()),
    row("hardsigmoid", nn.Hardsigmoid(), F.hardsigmoid),
    row("tanh", nn.Tanh(), torch.tanh, lambda x: x.tanh()),
    row("hardswish", nn.Hardswish(), F.hardswish),
    row("silu", nn.SiLU(), F.silu),
    row("gelu", nn.GELU(), nn.GELU("tanh"), F.gelu),
    row("mish", nn.Mish(), F.mish),
    row("elu", nn.ELU(), F.elu),
    row("celu", nn.CELU(), F.celu, torch.celu),
    row("selu", nn.SELU(), F.selu),
    row("leaky_relu", nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2)),
    row("rrelu", nn.RReLU(), F.rrelu),
    row("prelu", nn.PReLU(4), nn.PReLU(), Own(lambda m, x: F.prelu(x, m.slope)), Own(lambda m, x: x.prelu(m.slope))),
    row("softplus", nn.Softplus(), F.softplus),
    row("softsign", nn.Softsign(), F.softsign),
    row("logsigmoid", nn.LogSigmoid(), F.logsigmoid),
    row("tanhshrink", nn.Tanhshrink(), F.tanhshrink, least=25),  # near 0 it is flat, and most values are there
    row("softshrink", nn.Softshrink(0.2), lambda x: F.softshrink(x, 0.2)),
    row("hardshrink", nn.Hardshrink(0.2), lambda x: F.hardshrink(x, 0.2), lambda x: x.hardshrink(0.2), least=JUMPS),
    row("threshold", nn.Threshold(0.1, -0.3), lambda x: F.threshold(x, 0.1, -0.3), least=JUMPS),
    row("erf", torch.erf, lambda x: x.erf()),
    row("erfc", torch.erfc),
    row("atan", torch.atan, lambda x: x.atan()),
    row("asinh", torch.asinh),
    row("neg", lambda x: -x, torch.negative, lambda x: x.neg()),
    row("abs", torch.abs, torch.absolute, lambda x: x.abs()),
    row("square", torch.square, lambda x: x.square()),
    row("pow_number", lambda x: x**2, lambda x: x.pow(3), lambda x: torch.pow(x, 2)),
    row("add_number", lambda x: x + 2, lambda x: 2 + x, lambda x: x.add_(1.5)),
    row("sub_number", lambda x: x - 2, lambda x: torch.sub(x, 2)),
    row("number_sub", lambda x: 2 - x, lambda x: torch.rsub(x, 2)),
    row(
        "rescale",
        lambda x: x * 3,
        lambda x: 3 * x,
        lambda x: x.mul(0.1),
        lambda x: x / 3,
        lambda x: x.div(3),
        lambda x: torch.true_divide(x, 3),
    ),
    row("mul_number", lambda x: x * -3, lambda x: -3 * x, lambda x: x.mul(-0.1)),
    row("div_number", lambda x: x / -3, lambda x: x.div(-3), lambda x: torch.true_divide(x, -3)),
    row("number_div", lambda x: 3 / (x.sigmoid() + 1), fate="sigmoid add_number number_div"),
)

PAIR_ROWS = (
    row("add", lambda x: x + x.flip(1), lambda x: torch.add(x, x.flip(1)), fate="flip add"),
    row("add, repeated", lambda x: x + x.mean((2, 3), True), lambda x: x.mean((2, 3), True) + x, fate="mean add"),
    row("sub", lambda x: x - x.flip(1), lambda x: x.sub(x.flip(1)), fate="flip sub"),
    row("sub, repeated", lambda x: x - x[:, :1], lambda x: x[:1] - x, fate="getitem sub"),
    row("mul", lambda x: x * x.flip(1), lambda x: x.multiply(x.flip(1)), fate="flip mul"),
    row("mul, repeated", lambda x: x * x[:, :1], lambda x: x[0] * x, fate="getitem mul"),
    row("maximum", lambda x: torch.maximum(x, x.flip(1)), lambda x: torch.max(x, x.flip(1)), fate="flip maximum"),
    row("minimum", lambda x: x.minimum(x.flip(1)), lambda x: torch.min(x, x.flip(1)), fate="flip minimum"),
    row("fmax", lambda x: torch.fmax(x, x.flip(1)), lambda x: x.fmax(x.flip(1)), fate="flip maximum"),
    row("fmin", lambda x: torch.fmin(x, x.flip(1)), lambda x: x.fmin(x.flip(1)), fate="flip minimum"),
    row("cat", lambda x: torch.cat([x, x.flip(1)], 1), lambda x: torch.concat((x, x.flip(1)), axis=1), fate="flip cat"),
    row("stack", lambda x: torch.stack([x, x.flip(1)], -1), fate="flip stack"),
    stays("add with alpha", "alpha=2: only a plain sum has an integer form",
          lambda x: torch.add(x, x.flip(1), alpha=2)),
    stays("sub with alpha", "alpha=2: only a plain difference has an integer form",
          lambda x: x.sub(x.flip(1), alpha=2)),
    stays("div", QUOTIENT, lambda x: x / (x.flip(1) + 9), lambda x: x.div(x.flip(1) + 9)),
)  # fmt: skip

PRODUCT_ROWS = (
    row("matmul", lambda x: x @ x.mT, lambda x: torch.matmul(x, x.mT), lambda x: x.matmul(x.mT),
        lambda x: torch.linalg.matmul(x, x.mT), fate="transposed matmul"),
    row("matmul, numbers", lambda x: torch.matmul(x, x.mT) * 0.3, fate="transposed matmul_scaled"),
    row("bmm", lambda x: torch.bmm(x, x.mT), lambda x: x.bmm(x.mT), rank=3, fate="transposed matmul"),
    row("mm", lambda x: torch.mm(x, x.t()), lambda x: x.mm(x.t()), lambda x: torch.mm(mat2=x.t(), input=x), rank=2,
        fate="t matmul"),
    row("product with a weight", Own(lambda m, x: x @ m.table), Own(lambda m, x: torch.mm(x, m.table)),
        Own(lambda m, x: torch.einsum("bi,io->bo", x, m.table)), Own(lambda m, x: x.mm(m.table)),
        Own(lambda m, x: torch.einsum("io,bi->bo", m.table, x)), Own(lambda m, x: torch.inner(x, m.table.t())),
        Own(lambda m, x: torch.tensordot(x, m.table, 1)), Own(lambda m, x: torch.addmm(m.bias, x, m.table)),
        Own(lambda m, x: m.bias.addmm(x, m.table, alpha=0.5, beta=2)), rank=2, fate="linear"),
    row("mv", lambda x: torch.mv(x, x[0]), lambda x: x.mv(x[0]), rank=2, fate="getitem matmul"),
    row("mv with a weight", Own(lambda m, x: torch.mv(x, m.bias)), rank=2, fate="linear squeeze"),
    row("dot", lambda x: torch.dot(x[0], x[1]), lambda x: x[0].dot(x[1]), lambda x: torch.vdot(x[0], x[1]),
        lambda x: torch.inner(x[0], x[1]), lambda x: x[0].inner(x[1]), rank=2, fate="getitem getitem matmul"),
    row("outer", lambda x: torch.outer(x[0], x[1]), lambda x: x[0].outer(x[1]), lambda x: torch.ger(x[0], x[1]),
        rank=2, fate="getitem getitem unsqueeze unsqueeze mul"),
    row("einsum", lambda x: torch.einsum("bchw,bcvw->bchv", x, x), lambda x: torch.einsum("...hw,...vw->...hv", [x, x]),
        fate="permute matmul"),
    row("einsum of heads", lambda x: torch.einsum("b q h d, b k h d -> b h q k", x, x), fate="permute permute matmul"),
    row("einsum over two dimensions", lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
        fate="flatten permute flatten matmul"),
    row("einsum of elements", lambda x: torch.einsum("bchw,bchw->bchw", x, x.flip(1)), fate="flip mul"),
    row("einsum of one tensor", lambda x: torch.einsum("bchw->bwhc", x), fate="permute"),
    row("tensordot", lambda x: torch.tensordot(x, x, ([1, 2, 3], [1, 2, 3])),
        fate="flatten permute flatten matmul"),
    stays("einsum that is no product of two", MANY, lambda x: torch.einsum("ab,bc,cd->ad", x, x.t(), x), rank=2),
    stays("einsum of a diagonal", DIAGONAL, lambda x: torch.einsum("bcc->bc", x[:, :, :4]), rank=3),
    stays("einsum with lists of numbers", SPELLING, lambda x: torch.einsum(x, [0, 1], x, [2, 1], [0, 2]), rank=2),
    stays("einsum along a dimension of size 1", BROADCAST, lambda x: torch.einsum("ij,kj->ik", x, x[:, :1]), rank=2),
    row("addmm", lambda x: torch.addmm(x[:1], x.t(), x), lambda x: x[:1].addmm(x.t(), x), rank=2,
        fate="getitem t matmul add"),
    row("addmm, numbers", lambda x: torch.addmm(x[:1], x.t(), x, beta=0.5, alpha=2), rank=2,
        fate="getitem t rescale matmul_scaled add"),
    row("baddbmm", lambda x: torch.baddbmm(x[:, :, :4], x, x.mT), rank=3, fate="getitem transposed matmul add"),
    row("addbmm", lambda x: torch.addbmm(x[0, :, :4], x, x.mT), rank=3, fate="getitem transposed matmul sum add"),
    row("addmv", lambda x: torch.addmv(x[:, 0], x, x[0]), rank=2, fate="getitem getitem matmul add"),
    row("addr", lambda x: torch.addr(x, x[:, 0], x[0]), rank=2, fate="getitem getitem unsqueeze mul add"),
    row("addcmul", lambda x: torch.addcmul(x, x, x.flip(1)), lambda x: x.addcmul(x, x.flip(1)), fate="flip mul add"),
    row("lerp", lambda x: x.lerp(x.flip(1), 0.3), lambda x: torch.lerp(x, x.flip(1), 0.3),
        fate="flip sub rescale add"),
    row("glu", nn.GLU(1), lambda x: F.glu(x, 1), fate="chunk getitem getitem sigmoid mul"),
    row("embedding", Own(lambda m, x: F.embedding(INDEX, m.table) + x[:2]), rank=2, fate="embedding getitem add"),
    stays("addcdiv", QUOTIENT, lambda x: torch.addcdiv(x, x, x.flip(1) + 9)),
)  # fmt: skip

POOL_ROWS = (
    row("max_pool1d", nn.MaxPool1d(3, 2, 1), lambda x: F.max_pool1d(x, 3, 2), lambda x: torch.max_pool1d(x, 2), rank=3),
    row("max_pool2d", nn.MaxPool2d(3, 2, 1, ceil_mode=True), lambda x: F.max_pool2d(x, 2, dilation=2)),
    row("max_pool3d", nn.MaxPool3d(2), lambda x: F.max_pool3d(x, (1, 2, 3), ceil_mode=True), rank=5),
    row("avg_pool1d", nn.AvgPool1d(3, 1, 1, count_include_pad=False), lambda x: F.avg_pool1d(x, 2), rank=3),
    row("avg_pool2d", nn.AvgPool2d(3, 2, 1, True), lambda x: F.avg_pool2d(x, 2, divisor_override=3)),
    row("avg_pool3d", nn.AvgPool3d(2, 1, 1), nn.AvgPool3d((1, 2, 3), count_include_pad=False), rank=5),
    row("adaptive_avg_pool1d", nn.AdaptiveAvgPool1d(5), lambda x: F.adaptive_avg_pool1d(x, 1), rank=3),
    row("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((None, 3)), lambda x: F.adaptive_avg_pool2d(x, 1)),
    row("adaptive_avg_pool3d", nn.AdaptiveAvgPool3d((2, None, 3)), lambda x: F.adaptive_avg_pool3d(x, 1), rank=5),
    row("adaptive_max_pool1d", nn.AdaptiveMaxPool1d(5), lambda x: F.adaptive_max_pool1d(x, 1), rank=3),
    row("adaptive_max_pool2d", nn.AdaptiveMaxPool2d((None, 3)), lambda x: F.adaptive_max_pool2d(x, 1)),
    row("adaptive_max_pool3d", nn.AdaptiveMaxPool3d((2, None, 3)), rank=5),
    row("mean", lambda x: x.mean((2, 3)), lambda x: torch.mean(x, 1, keepdim=True), lambda x: x.mean()),
    row("sum", lambda x: x.sum((2, 3)), lambda x: torch.sum(x, 1, keepdim=True), lambda x: x.sum(axis=-1)),
    row("amax", lambda x: x.amax((2, 3)), lambda x: torch.amax(x, 1, True), lambda x: x.amin(0)),
    row("max", lambda x: x.max(), lambda x: torch.min(x)),
    row("max_values", lambda x: x.max(1)[0], lambda x: x.max(dim=2, keepdim=True).values, lambda x: torch.min(x, 1)[0]),
    stays("pools with indices", GIVES_INDICES, nn.Sequential(nn.MaxPool2d(2, return_indices=True)),
          lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
          lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True)[0]),
    stays("fractional_max_pool", GIVES_INDICES, nn.FractionalMaxPool2d(2, output_size=3)),
    stays("lp_pool", POWERS, nn.LPPool2d(2, 2), lambda x: F.lp_pool2d(x, 2, 2)),
    stays("maxima with positions", "its output is a tensor of int64", lambda x: x.max(1)),
)  # fmt: skip

RESIZE_ROWS = (
    row("nearest", nn.Upsample(scale_factor=2), nn.UpsamplingNearest2d((3, 5)), lambda x: F.interpolate(x, (9, 4)),
        lambda x: F.interpolate(x, x.shape[-2:], mode="nearest-exact"), fate="interpolate"),
    row("nearest, 1d", nn.Upsample(5), rank=3, fate="interpolate"),
    row("nearest, 3d", nn.Upsample(scale_factor=(1, 2, 2)), rank=5, fate="interpolate"),
    row("bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), nn.UpsamplingBilinear2d(scale_factor=1.5),
        lambda x: F.interpolate(x, (9, 4), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, (x.shape[-1], x.shape[-2]), mode="bilinear"),
        lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), fate="interpolate_weighted"),
    row("bicubic", nn.Upsample(scale_factor=2, mode="bicubic"), fate="interpolate_weighted"),
    row("linear resizing", nn.Upsample(scale_factor=2, mode="linear"), rank=3, fate="interpolate_weighted"),
    stays("trilinear", "mode='trilinear' has no integer operator yet",
          nn.Upsample(scale_factor=2, mode="trilinear"), rank=5),
    stays("area", "mode='area' has no integer operator yet", lambda x: F.interpolate(x, (3, 4), mode="area")),
    stays("grid_sample", SAMPLED, lambda x: F.grid_sample(x, torch.zeros(2, 3, 3, 2), align_corners=False)),
    row("pad", nn.ZeroPad2d(1), lambda x: F.pad(x, (1, 2, 0, 1)), lambda x: F.pad(x, (0, x.shape[3] % 5)),
        nn.ConstantPad2d(1, 0.0)),
    row("pad, 1d", nn.ZeroPad1d(1), rank=3, fate="pad"),
    row("pad, 3d", nn.ZeroPad3d(1), rank=5, fate="pad"),
    row("pad_number", nn.ConstantPad2d(1, -3.0), lambda x: F.pad(x, (1, 1), value=0.5),
        lambda x: F.pad(x, (0, x.shape[3] % 5), value=1.0)),
    row("pad_with_values", lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"),
        lambda x: F.pad(x, (1, 1, 2, 0), mode="replicate"),
        lambda x: F.pad(x, (1, 1, 2, 0), mode="circular")),
    row("pad_module", nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.CircularPad2d(1)),
    row("pad_module, 1d", nn.ReflectionPad1d(1), nn.ReplicationPad1d(1), nn.CircularPad1d(1), rank=3,
        fate="pad_module"),
    row("pad_module, 3d", nn.ReflectionPad3d(1), nn.ReplicationPad3d(1), nn.CircularPad3d(1), rank=5,
        fate="pad_module"),
    stays("pad with infinity", "value=-inf lies in no quantization range",
          lambda x: F.pad(x, (1, 1), value=float("-inf"))),
)  # fmt: skip

MOVE_ROWS = (
    row("flatten", nn.Flatten(), lambda x: x.flatten(2), lambda x: torch.ravel(x)),
    row("reshape", lambda x: x.reshape(2, -1), lambda x: x.view(x.size(0), 2, -1)),
    row("unflatten", nn.Unflatten(1, (2, 2)), lambda x: x.unflatten(1, (2, -1))),
    row("permute", lambda x: x.permute(0, 2, 3, 1), lambda x: torch.permute(x, (3, 2, 1, 0))),
    row("transpose", lambda x: x.transpose(1, 2), lambda x: x.swapaxes(1, -1), lambda x: torch.swapdims(x, 0, 1)),
    row("transposed", lambda x: x.mT),
    row("t", lambda x: x.t(), rank=2),
    row("movedim", lambda x: x.movedim(1, -1), lambda x: torch.moveaxis(x, 1, -1)),
    row("squeeze", lambda x: x[:, :1].squeeze(1), lambda x: torch.squeeze(x[:1]),
        lambda x: x[:1, :, :1].squeeze((0, 2)),
        fate="getitem squeeze"),
    row("unsqueeze", lambda x: x.unsqueeze(1), lambda x: torch.unsqueeze(x, -1)),
    row("expand", lambda x: x[:1].expand(3, -1, -1, -1), lambda x: torch.broadcast_to(x[:1], (3, 4, 6, 8)),
        fate="getitem expand"),
    row("expand_as", lambda x: x[:1].expand_as(x), fate="getitem like"),
    row("view_as", lambda x: x.flatten(1).view_as(x), fate="flatten like"),
    row("repeat", lambda x: x.repeat(1, 2, 1, 1), lambda x: x.tile(2), lambda x: torch.tile(x, (2, 1))),
    row("repeat_interleave", lambda x: x.repeat_interleave(2, 1), lambda x: torch.repeat_interleave(x, 2, dim=3)),
    row("flip", lambda x: x.flip(1), lambda x: torch.fliplr(x)),
    row("roll", lambda x: x.roll(1, 1), lambda x: torch.roll(x, (1, 2), (2, 3))),
    row("rot90", lambda x: torch.rot90(x, 1, (2, 3))),
    row("diagonal", lambda x: x.diagonal(0, 2, 3)),
    row("windows", lambda x: x.unfold(2, 2, 1)),
    row("narrow", lambda x: x.narrow(1, 1, 2), lambda x: torch.narrow(x, 2, 0, 3)),
    row("select", lambda x: x.select(1, 1), lambda x: torch.select(x, -1, 0)),
    row("index_select", lambda x: x.index_select(1, INDEX), lambda x: torch.index_select(x, 1, INDEX)),
    row("gather", lambda x: x.gather(1, torch.zeros(1, 1, 6, 8, dtype=torch.long)), lambda x: torch.take(x, INDEX)),
    row("getitem", lambda x: x[:, 1:, ::2], lambda x: x[..., 0], lambda x: x[:, INDEX], lambda x: x[:, None, -1]),
    row("chunk", lambda x: x.chunk(2, 1)[1], fate="chunk getitem"),
    row("split", lambda x: x.split([1, 3], 1)[1], lambda x: torch.split(x, 2)[0], fate="split getitem"),
    row("tensor_split", lambda x: x.tensor_split(3, 3)[1], lambda x: torch.hsplit(x, 2)[0],
        fate="tensor_split getitem"),
    row("unbind", lambda x: x.unbind(1)[0], lambda x: torch.unbind(x)[1], fate="unbind getitem"),
    row("pixel_shuffle", nn.PixelShuffle(2), lambda x: F.pixel_shuffle(x, 2)),
    row("pixel_unshuffle", nn.PixelUnshuffle(2), lambda x: F.pixel_unshuffle(x, 2)),
    row("channel_shuffle", nn.ChannelShuffle(2), lambda x: F.channel_shuffle(x, 2)),
    row("contiguous", lambda x: x.contiguous(), lambda x: x.contiguous(memory_format=torch.channels_last)),
    row("same", lambda x: x.clone(), lambda x: x.to(memory_format=torch.channels_last)),
    row("conversion", lambda x: x.float(), lambda x: x.to(torch.float32), lambda x: x.type_as(x), lambda x: x.cpu(),
        lambda x: x.detach(), lambda x: +x, fate=""),
    row("identity", nn.Identity(), fate=""),
    row("dropout", nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout(),
        Own(lambda m, x: F.dropout(x, 0.5, m.training)), lambda x: F.alpha_dropout(x), fate=""),
    row("dropout1d", nn.Dropout1d(), rank=3, fate=""),
    row("dropout3d", nn.Dropout3d(), rank=5, fate=""),
    stays("another dtype", "it converts to another dtype or device", lambda x: x.double()),
    stays("unfold", OVERLAPS, nn.Unfold(2), lambda x: F.unfold(x, 2)),
)  # fmt: skip

FLOAT_ROWS = (
    *(stays(name, STEEP, getattr(torch, name)) for name in ("exp", "expm1", "exp2", "sin", "cos", "tan", "sinh")),
    stays("a power of a number", STEEP, lambda x: 2**x, lambda x: torch.pow(2.0, x)),
    stays("sinc", STEEP, torch.sinc, lambda x: x.sinc()),
    stays("nan_to_num", NOT_FINITE, torch.nan_to_num, lambda x: x.nan_to_num(0.0)),
    stays("heaviside", HAS_JUMPS, lambda x: torch.heaviside(x, torch.zeros(()))),
    stays("sqrt", STEEP, lambda x: x.abs().sqrt()),
    stays("log", STEEP, lambda x: x.sigmoid().log()),
    stays("reciprocal", STEEP, lambda x: x.sigmoid().reciprocal()),
    stays("a root as a power", "only squares and cubes are smooth enough between two steps, not the power of 0.5",
          lambda x: x.sigmoid() ** 0.5),
    *(stays(name, HAS_JUMPS, getattr(torch, name)) for name in ("sign", "floor", "ceil", "round", "trunc", "frac")),
    stays("remainder", HAS_JUMPS, lambda x: x % 0.5, lambda x: torch.fmod(x, 0.5), lambda x: x.remainder(0.5)),
    stays("floor_divide", HAS_JUMPS, lambda x: x // 0.5),
    stays("cumsum", CUMULATIVE, lambda x: x.cumsum(1), lambda x: torch.cumsum(x, 1), lambda x: x.cumprod(1)),
    stays("prod", CUMULATIVE, lambda x: x.prod(1)),
    stays("masked_fill", MASKED, lambda x: x.masked_fill(x > 0, 0.0)),
    stays("where", MASKED, lambda x: torch.where(x > 0, x, 0.0)),
    stays("tril", MASKED, lambda x: x.tril(), lambda x: torch.triu(x)),
    stays("std", POWERS, lambda x: x.std(1), lambda x: torch.var(x, 1), lambda x: x.norm(dim=1)),
    stays("topk", GIVES_INDICES, lambda x: x.topk(2, 1)[0], lambda x: torch.sort(x, 1)[0]),
    stays("softmax over channels", EXPONENTIALS, nn.Softmax2d(), nn.Softmin(1)),
    stays("bilinear", MANY, Pair(nn.Bilinear(12, 12, 3)), rank=2),
    stays("cosine_similarity", SIMILARITY, Pair(nn.CosineSimilarity()),
          lambda x: F.cosine_similarity(x, x.flip(1)), rank=2),
)  # fmt: skip

ROWS = (
    *(LAYER_ROWS + CLAMP_ROWS + FUNCTION_ROWS + PAIR_ROWS + PRODUCT_ROWS),
    *(POOL_ROWS + RESIZE_ROWS + MOVE_ROWS + FLOAT_ROWS),
)
CASES = [(each, spelling) for each in ROWS for spelling in each.spellings]
IDS = [f"{each.name}-{i}" for each in ROWS for i in range(len(each.spellings))]


def planned(reader: Spelling, rank: int) -> fxq.Quantizer:
    torch.manual_seed(0)
    model = Behind(reader, rank).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
        elif isinstance(module, nn.PReLU) and module.weight.numel() > 1:
            nn.init.uniform_(module.weight, -0.5, 0.5)
    return fxq.prepare(model, X[rank], rounding_outputs())


def tensors(value: Any) -> list[Tensor]:
    """Every real tensor of a result."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    return [tensor for item in value for tensor in tensors(item)]


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # says torch, of the float model
@pytest.mark.parametrize(("case", "spelling"), CASES, ids=IDS)
def test_the_fate_of_an_operator(case: Row, spelling: Spelling) -> None:
    prepared = planned(spelling, case.rank)
    _, *behind = (unit.pattern for unit in prepared.plan.units)
    assert behind == case.fate.split()
    reasons = {refusal.reason for refusal in prepared.plan.refusals if "only float" not in refusal.reason}
    assert reasons == ({case.reason} if case.reason else set())


FIRST = [each for each in ROWS if not each.reason]


IN_ALL_FORMS = {*FUNCTIONS, *MOVED}
"""Names of rows whose models other tests convert to every form."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(each, id=each.name, marks=pytest.mark.slow) for each in FIRST if each.name in IN_ALL_FORMS),
        *(pytest.param(each, id=each.name) for each in FIRST if each.name not in IN_ALL_FORMS),
    ],
)
def test_int8_is_the_simulation_and_close_to_float(case: Row) -> None:
    """Of each row the first spelling, on the batch that it was calibrated on and on half of it."""
    x = X[case.rank]
    prepared = planned(case.spellings[0], case.rank).calibrate([x], progress=False)
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    for batch in (x, x[: len(x) // 2]):
        with torch.no_grad():
            assert measure_parity(int8, simulated, (batch,)).breaches == ()
            expected, got = (torch.cat([t.flatten() for t in tensors(m(batch))]) for m in (prepared, int8))
        error = (expected - got).square().mean()
        assert float(10 * torch.log10(expected.square().mean() / error)) > case.least
