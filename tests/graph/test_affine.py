"""Products and sums with one number per channel: which there are, and what layer they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.graph.affine import ChannelAffine, per_channel
from fxquant.graph.query import module_of

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    """A forward of one line behind a layer, with constants: ``s``, ``b``, ``m`` per channel, others of other shapes."""

    def __init__(self, body, layer: nn.Module | None = None, channels: int = 4, behind: int = 2) -> None:
        super().__init__()
        self.body, self.layer = body, nn.Conv2d(4, channels, 3) if layer is None else layer
        generator = torch.Generator().manual_seed(1)
        for name in "sbm":
            shape = (channels, *[1] * behind)
            self.register_buffer(name, torch.rand(shape, generator=generator) + 0.5)
        self.register_buffer("map", torch.rand(1, 1, 4, 4, generator=generator))
        self.register_buffer("number", torch.rand(1, generator=generator))
        self.register_buffer("wide", self.s.double())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.layer(x))


def norms(model: nn.Module, x: Tensor = X, atol: float = 0.0) -> list[ChannelAffine]:
    """The layers that were made, whose model gives what it gave."""
    made = fxq.prepare(model.eval(), x)
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), atol=atol, rtol=0)
    modules = [module_of(node) for node in made.graph.nodes]
    return [module for module in modules if isinstance(module, ChannelAffine)]


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        (lambda m, y: y * m.s + m.b, {"weight", "bias"}),
        (lambda m, y: m.b + m.s * y, {"weight", "bias"}),
        (lambda m, y: y.mul(m.s).sub(m.b), {"weight", "bias"}),
        (lambda m, y: y * m.s[None] + m.b, {"weight", "bias"}),
        (lambda m, y: y * m.s, {"weight"}),
        (lambda m, y: y + m.b, {"bias"}),
        (lambda m, y: y - m.b, {"bias"}),
        (lambda m, y: y * m.number, {"weight"}),
        (lambda m, y: (y - m.m) * m.s + m.b, {"weight", "bias", "running_mean"}),
        (lambda m, y: (y + m.m) * m.s, {"weight", "running_mean"}),
        (lambda m, y: y * (m.s / (m.m + 1e-5).sqrt()) + (m.b - m.m * m.s), {"weight", "bias"}),
        (lambda m, y: nn.functional.dropout(y, 0.1, False) * m.s + m.b, {"weight", "bias"}),
    ],
)
def test_what_is_written_behind_a_layer_is_a_norm(body, tensors):
    (norm,) = norms(Body(body))
    assert {name for name, value in norm.state_dict().items() if value is not None} == tensors
    assert norm.num_features == 4
    assert norm.behind == 2


@pytest.mark.parametrize(
    "body",
    [
        lambda m, y: y * y.mean((2, 3), keepdim=True) + m.b[..., :1, :1] * y,
        lambda m, y: y * m.map,
        lambda m, y: y + m.map,
        lambda m, y: m.b - y,
        lambda m, y: y + m.b.log().where(m.b > 1, -torch.inf),
        lambda m, y: y * m.wide,
        lambda m, y: y * torch.rand(4, 1, 1) * 0,
        lambda m, y: y * m.s.reshape(1, 1, 1, 4),
        lambda m, y: torch.add(y, m.b, alpha=2),
        lambda m, y: torch.stack([y, y]) * m.s,
        lambda m, y: (y * m.s[0, 0, 0]).relu() * m.s,
    ],
    ids=["depends on the input", "per position", "per position, added", "reversed", "a mask of infinities",
         "of another dtype", "random", "along another dimension", "alpha", "behind a stack", "behind an activation"],
)  # fmt: skip
def test_what_is_no_norm(body):
    assert [norm for norm in norms(Body(body)) if norm.weight is None or norm.weight.unique().numel() > 1] == []


def test_addcmul_is_taken_apart_first():
    assert len(norms(Body(lambda m, y: torch.addcmul(m.b, y, m.s)), atol=1e-6)) == 1


def test_a_value_that_others_read_has_no_norm_for_them():
    """A product alone stays one; a product and a sum are a norm of their own."""
    assert norms(Body(lambda m, y: y * m.s + y.sum())) == []
    assert len(norms(Body(lambda m, y: (y * m.s + m.b) * y))) == 1


@pytest.mark.parametrize(
    ("layer", "behind", "x"),
    [
        (nn.Conv1d(4, 5, 3), 1, torch.randn(2, 4, 9)),
        (nn.Conv3d(4, 5, 1), 3, torch.randn(2, 4, 3, 3, 3)),
        (nn.ConvTranspose2d(4, 5, 2), 2, X),
        (nn.Linear(6, 5), 0, X),
        (nn.Linear(6, 5), 0, X[0, 0]),
        (nn.Conv2d(4, 5, 3), 2, X[0]),
        (nn.Conv2d(4, 1, 3), 2, X),
    ],
    ids=["1d", "3d", "transposed", "linear", "linear, rows", "without a batch", "one channel"],
)
def test_the_layer_says_which_dimension_counts_the_channels(layer, behind, x):
    channels = len(layer.bias)
    (norm,) = norms(Body(lambda m, y: y * m.s + m.b, layer, channels, behind), x)
    assert (norm.num_features, norm.behind) == (channels, behind)


def test_an_operator_that_the_user_leaves_in_float_stays_what_it_is():
    model = Body(lambda m, y: y * m.s + m.b).eval()
    rules = fxq.get_default_qconfig_mapping().set_object_type(torch.mul, None)
    made = fxq.prepare(model, X, rules)
    assert not any(isinstance(module_of(node), ChannelAffine) for node in made.graph.nodes)


def test_one_number_counts_for_all_channels():
    assert per_channel(torch.tensor(2.0), 3).tolist() == [2, 2, 2]
    assert per_channel(torch.tensor([[[1.0]], [[2.0]]]), 2).tolist() == [1, 2]
