"""Moves of stored integers: found in every spelling, exact, with parts of tuples taken as integers."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.passes.annotate import HAS_FLOAT_READER
from fxquant.passes.normalize import position_in_whole
from fxquant.passes.unit_choice import UNREAD
from fxquant.patterns.pattern import Output
from fxquant.patterns.shape import SHAPE
from fxquant.plan.spec import SharedWith, TensorRef


def test_all_keep_the_grid_of_their_input():
    """But for those that make new values."""
    assert {p.name for p in SHAPE if p.output is not Output.PICKED} == {"interpolate_weighted", "pad_number"}


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda x: x.flatten(1), "flatten"),
        (nn.Flatten(2), "flatten"),
        (lambda x: x.view(x.size(0), -1), "reshape"),
        (lambda x: torch.reshape(x, (-1,)), "reshape"),
        (lambda x: x.contiguous(), "contiguous"),
    ],
)
def test_moves_behind_a_quantized_value(plan_behind_conv, body, pattern):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv", pattern]
    assert plan.policies[plan.units[-1].roles["y"]] == SharedWith(TensorRef("conv"))


MOVED = {
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), nn.Unflatten(1, (2, 2))),
    "permute": (lambda x: x.permute(0, 2, 3, 1), lambda x: torch.permute(x, (3, 0, 1, 2))),
    "transpose": (lambda x: x.transpose(1, 2), lambda x: torch.swapaxes(x, -1, 1)),
    "movedim": (lambda x: x.movedim(1, -1), lambda x: torch.movedim(x, (0, 1), (1, 0))),
    "unsqueeze": (lambda x: x.unsqueeze(0), lambda x: torch.unsqueeze(x, -1)),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3), lambda x: torch.tile(x, (2, 2))),
    "roll": (lambda x: torch.roll(x, 1, 2), lambda x: x.roll((1, 2), (2, 3))),
    "flip": (lambda x: x.flip(1), lambda x: torch.flip(x, (2, 3))),
    "getitem": (lambda x: x[:, 1:3, ::2], lambda x: x[..., 0], lambda x: x[:, [2, 0]], lambda x: x[None, 0]),
    "pixel_shuffle": (nn.PixelShuffle(2), lambda x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": (nn.PixelUnshuffle(3), lambda x: F.pixel_unshuffle(x, 2)),
    "channel_shuffle": (nn.ChannelShuffle(2), lambda x: F.channel_shuffle(x, 2)),
    "pad_with_values": (
        lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
        lambda x: F.pad(x, (1, 1, 0, 2), mode="replicate"),
    ),
    "pad_module": (nn.ReflectionPad2d(2), nn.ReplicationPad2d((1, 2, 0, 1)), nn.CircularPad2d(1)),
    "interpolate": (
        nn.Upsample(scale_factor=2),
        lambda x: F.interpolate(x, size=(9, 4), mode="nearest-exact"),
        lambda x: F.interpolate(x, size=x.shape[-1]),
    ),
    "pad": (
        lambda x: F.pad(x, (1, 2, 0, 1)),
        lambda x: F.pad(x, (-1, 2), value=0.0),
        lambda x: F.pad(x, (0, x.size(2) % 4)),
        nn.ZeroPad2d(1),
        nn.ZeroPad2d((2, -1, 0, 1)),
        nn.ConstantPad2d(1, 0.0),
    ),
}

SIGNED = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.int8), fxq.get_default_qconfig().weight)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("pattern", "body", "qconfig"),
    [
        pytest.param(name, body, qconfig, marks=pytest.mark.slow if qconfig and body is not bodies[0] else ())
        for name, bodies in MOVED.items()
        for body in bodies
        for qconfig in (None, SIGNED)
    ],
)
def test_a_move_moves_integers_exactly(forms_behind_conv, pattern, body, qconfig):
    forms = forms_behind_conv(body, qconfig=qconfig)
    assert forms.units == ["conv", pattern]
    assert torch.equal(forms.got, forms.simulated)
    kinds = [type(module).__name__ for module in forms.int8.modules()]
    assert kinds.count("Quantize") == kinds.count("Dequantize") == 1


@pytest.mark.parametrize(
    ("body", "units"),
    [
        (lambda x: x.mean(2, keepdim=True).squeeze(2), ["mean", "squeeze"]),
        (lambda x: torch.squeeze(x.mean((0, 2, 3), keepdim=True)), ["mean", "squeeze"]),
        (lambda x: x * x.mean((2, 3), keepdim=True).expand(-1, -1, 6, 6), ["mean", "expand", "mul"]),
        (lambda x: x.flatten(1).t(), ["flatten", "t"]),
    ],
)
def test_moves_of_other_ranks(forms_behind_conv, body, units):
    forms = forms_behind_conv(body)
    assert forms.units == ["conv", *units]
    assert torch.equal(forms.got, forms.simulated)


def shuffled(x):
    """As ShuffleNet writes it."""
    batch, channels, height, width = x.size()
    return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous().view(batch, -1, height, width)


def test_a_channel_shuffle_by_hand(forms_behind_conv):
    forms = forms_behind_conv(lambda x: F.max_pool2d(shuffled(x), 2))
    assert forms.units == ["conv", "reshape", "transpose", "contiguous", "reshape", "max_pool2d"]
    assert torch.equal(forms.got, forms.simulated)


SPLIT = {
    "chunk": (lambda x: x.chunk(2, 1), lambda x: torch.chunk(x, 2, dim=1)),
    "split": (lambda x: x.split([1, 3], 1), lambda x: torch.split(x, 2, dim=1)),
    "unbind": (lambda x: x.unbind(1), lambda x: torch.unbind(x, -1)),
}


@pytest.mark.parametrize(("pattern", "split"), [(name, split) for name, splits in SPLIT.items() for split in splits])
def test_parts_are_taken_as_integers(forms_behind_conv, pattern, split):
    """One part is read by an operator without integer form; a part that nobody reads is no obstacle."""

    def body(x):
        parts = split(x)
        return torch.cos(parts[0]).prod() + F.relu(parts[-1])

    forms = forms_behind_conv(body)
    assert forms.units == ["conv", pattern, "getitem", "getitem", "relu", "add"]
    plan = forms.prepared.plan
    assert {plan.qparams_owner(unit.roles["y"]) for unit in plan.units[:-1]} == {TensorRef("conv")}
    assert set(forms.prepared.observers) == {"x", "x@-3", "conv", "prod", "add"}


@pytest.mark.parametrize(
    "body",
    [
        lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
        lambda x: (x.chunk(2, 1), x)[1],
        lambda x: torch.cat(x.chunk(2, 1), 1),
    ],
    ids=["turned around", "unread", "whole"],
)
def test_a_split_that_is_not_taken_apart_by_index_stays_float(plan_behind_conv, body):
    plan = plan_behind_conv(body)
    assert "chunk" not in [unit.pattern for unit in plan.units[1:]] or not plan.refusals
    reasons = {r.node: (r.reason, r.excused) for r in plan.refusals}
    assert reasons.get("chunk", (HAS_FLOAT_READER, True)) in ((HAS_FLOAT_READER, True), (UNREAD, True))


def test_one_of_several_values_of_another_operator_is_no_part(plan_of):
    plan = plan_of(lambda m, x: m.fc(x.topk(2, 1)[0]), x=torch.rand(3, 4), fc=nn.Linear(2, 2))
    assert [unit.pattern for unit in plan.units] == ["linear"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            lambda x: F.interpolate(x, scale_factor=2, mode="area"),
            "mode='area' has no integer operator yet",
        ),
        (lambda x: F.pad(x, (1, 1), value=-math.inf), "value=-inf lies in no quantization range"),
        (nn.ConstantPad2d(1, math.nan), "value=nan lies in no quantization range"),
        (lambda x: F.pad(x, (1, 1), value=x.size(2) / 4), "the number it pads with is computed at run time"),
        (lambda x: x.double(), "it converts to another dtype or device"),
        (lambda x: x.real, "attribute 'real' has no integer form"),
    ],
)
def test_what_has_no_integer_form_stays_float(plan_behind_conv, body, reason):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [refusal.reason for refusal in plan.refusals] == [reason]


@pytest.mark.parametrize(
    "body",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: F.dropout(x, 0.5, True),
        lambda x: F.dropout2d(x, 0.5),
        lambda x: F.dropout2d(x, 0.5, True),
        lambda x: F.dropout2d(x, training=True),
    ],
)
def test_a_dropout_that_is_active_in_evaluation_mode_stays(plan_behind_conv, body):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [(r.pattern, r.reason) for r in plan.refusals] == [
        ("dropout", "it drops values even in evaluation mode (training=True)")
    ]


def test_an_active_dropout_drops_in_the_converted_model_too():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return F.dropout(self.conv(x), 0.5)

    x = torch.rand(2, 3, 8, 8)
    prepared = fxq.prepare(Net().eval(), x)
    prepared(x)
    assert (fxq.convert(prepared)(x) == 0).any()


@pytest.mark.parametrize(
    ("body", "behind"),
    [
        (lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1), ["chunk", "getitem", "getitem", "cat"]),
        (lambda m, x: torch.cat(x.split(1, 1)[::-1], 1), ["split", *["getitem"] * 4, "cat"]),
        (lambda m, x: torch.stack(x.unbind(1)[::-1], 1), ["unbind", *["getitem"] * 4, "stack"]),
        (lambda m, x: x.chunk(2, 1)[::-1][-1].repeat(1, 2, 1, 1), ["chunk", "getitem", "repeat"]),
    ],
)
def test_lists_of_parts_from_the_end(forms_of, body, behind):
    forms = forms_of(
        lambda m, x: m.last(body(m, m.first(x))),
        x=torch.randn(2, 3, 6, 6),
        first=nn.Conv2d(3, 4, 1),
        last=nn.Conv2d(4, 2, 1),
    )
    assert forms.units == ["conv", *behind, "conv"]
    assert torch.equal(forms.got, forms.simulated)
    assert forms.sqnr > 30


@pytest.mark.parametrize(
    "body",
    [
        lambda x: torch.cat((*x.split(1, 1)[1:], x.split(1, 1)[0]), 1),
        lambda x: torch.cat((*x.split(1, 1)[::2], *x.split(1, 1)[1::2]), 1),
        lambda x: torch.cat((x[:, :3], x.unbind(1)[1:-1][-1][:, None]), 1),
        lambda x: x.chunk(2, 1)[1:][::-1][0].repeat(1, 2, 1, 1),
        lambda x: torch.cat((*x.chunk(4, 1)[-2:], *x.chunk(4, 1)[:-2]), 1),
        lambda x: torch.cat((*x.chunk(4, 1)[::-2], *x.chunk(4, 1)[1:3]), 1),
        lambda x: torch.cat(x.tensor_split(4, 1)[1:] + x.tensor_split(4, 1)[:1], 1),
    ],
)
def test_slices_of_lists_of_parts(forms_of, body):
    given = {"x": torch.randn(2, 3, 6, 6), "first": nn.Conv2d(3, 4, 1), "last": nn.Conv2d(4, 2, 1)}
    forms = forms_of(lambda m, x: m.last(body(m.first(x))), **given)
    assert forms.units[0] == forms.units[-1] == "conv"
    assert {"cat", "repeat"} & {*forms.units}
    assert torch.equal(forms.got, forms.simulated)
    assert forms.sqnr > 30


def test_the_index_in_the_whole_list_does_not_depend_on_its_length():
    """Where a slice of a list has an item at an index, the list has it at the index that is found."""
    bounds, found = (None, 0, 1, 2, -1, -2), 0
    for start, stop, step, index in itertools.product(bounds, bounds, (None, 1, 2, -1, -2), range(-3, 3)):
        part = slice(start, stop, step)
        place = position_in_whole(part, index)
        found += place is not None
        for length in range(6):
            items = list(range(length))
            with suppress(IndexError):
                item = items[part][index]
                assert place is None or items[place] == item, (part, index, length)
    assert found > 150
    assert position_in_whole(slice(1, None), True) is None
