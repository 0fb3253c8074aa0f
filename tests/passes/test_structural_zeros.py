"""Elements that are zero whatever the input is: those that random inputs and weights leave zero."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.graph.query import nodes_by_name
from fxquant.passes.structural_zeros import structural_zeros
from tests.sampling import one_of


class Net(nn.Module):
    """A frame of zeros, made by padding, and what else becomes of it."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.third = nn.Conv2d(8, 2, 1, bias=False)
        self.up = nn.ConvTranspose2d(4, 4, 1, stride=2, bias=False)

    def forward(self, x):
        wide = F.pad(self.first(x), (1, 0, 2, 0)).relu()
        pooled = F.silu(F.max_pool2d(wide, 2) + F.avg_pool2d(wide, 2))
        once = self.second(pooled) * -2.0
        twice = torch.cat([once, once.abs()], 1)
        third = F.hardswish(self.third(twice[:, :, ::2])).permute(0, 2, 3, 1)
        return F.normalize(third, dim=-1), self.up(once).sigmoid() - 0.5, wide


FIRST = {
    "padding": lambda bias: nn.Conv2d(2, 4, 1, padding=(3, 2), bias=bias),
    "grouped": lambda bias: nn.Conv2d(2, 4, (2, 1), padding=(4, 2), groups=2, bias=bias),
    "stride": lambda bias: nn.Conv2d(2, 4, 1, stride=2, padding=3, bias=bias),
    "transposed": lambda bias: nn.ConvTranspose2d(2, 4, 1, stride=(5, 1), bias=bias),
}


def prepared(first: nn.Module) -> tuple[Net, Tensor, fxq.Quantizer]:
    torch.manual_seed(0)
    model, x = Net(first).eval(), torch.randn(3, 2, 9, 6) + 0.5
    return model, x, fxq.prepare(model, x)


def zeros_of_draws(gm: torch.fx.GraphModule, x: Tensor) -> dict[str, Tensor]:
    """Of each value, the elements that are zero with every one of some random inputs and weights."""
    always: dict[str, Tensor] = {}

    class Run(torch.fx.Interpreter):
        def run_node(self, n):
            value = super().run_node(n)
            if isinstance(value, Tensor):
                always[n.name] = always.get(n.name, torch.ones_like(value, dtype=torch.bool)) & (value == 0)
            return value

    for draw in range(12):
        for parameter in gm.parameters():
            parameter.data = torch.randn_like(parameter)
        Run(gm).run(x + draw - 6)
    return always


@pytest.mark.parametrize("name", FIRST)
def test_all_are_found_and_no_other(name):
    _model, x, quantizer = prepared(FIRST[name](False))
    gm = quantizer.graph_module
    with torch.no_grad():
        expected = {name: zeros for name, zeros in zeros_of_draws(gm, x).items() if zeros.any()}
    found = {node.name: zeros for node, zeros in structural_zeros(gm).items()}
    for norm in ("normalize", "sub"):  # behind functions that are not known to keep zeros
        expected.pop(norm, None)
    assert expected.keys() == found.keys()
    assert len(found) > 8
    for value in expected:
        assert torch.equal(expected[value], found[value]), value


def test_a_bias_ends_them():
    _, _, quantizer = prepared(FIRST["padding"](True))
    found = {node.name for node in structural_zeros(quantizer.graph_module)}
    assert "pad" in found
    assert not found & {"first", "once"}


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("name", one_of(3, FIRST))
def test_rows_of_zeros_stay_zeros_behind_the_next_convolutions(name, statistics):
    model, x, quantizer = prepared(FIRST[name](False))
    quantizer.calibrate([x], progress=False)
    if statistics:
        quantizer = fxq.correct_statistics(quantizer, [x], progress=False)
    zeros = nodes_by_name(quantizer.graph_module)
    kept = structural_zeros(quantizer.graph_module)[zeros["permute"]]
    for form in ("int8", "fake_quant"):
        with torch.no_grad():
            expected, got = model(x)[0], fxq.convert(quantizer, to=form)(x)[0]
        assert kept.any()
        assert not expected[kept].any()
        assert not got[kept].any()
        assert float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean())) > 15


class Up(nn.Module):
    """A transposed convolution that is told its size."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(3, 4, 3, stride=4, padding=1, bias=False), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.up(F.pad(self.conv(x), (1, 1, 1, 1)), output_size=[22, 23])


@pytest.mark.filterwarnings("ignore::fxquant.FxQuantWarning")
def test_a_size_that_is_asked_for():
    torch.manual_seed(0)
    model, x = Up().eval(), torch.randn(2, 3, 4, 4)
    gm = fxq.prepare(model, x).graph_module
    with torch.no_grad():
        expected = zeros_of_draws(gm, x)["up"]
    assert torch.equal(structural_zeros(gm)[nodes_by_name(gm)["up"]], expected)
    with torch.no_grad():
        got = fxq.quantize(model, [x], progress=False)(x)
    assert not got[expected].any()


@pytest.mark.filterwarnings("ignore::fxquant.FxQuantWarning")
def test_what_is_more_than_a_convolution_gives_none():
    class Shifted(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) + 1

    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4)
    for first in (Shifted(3, 4, 1, padding=2, bias=False), nn.Conv2d(3, 4, 1, padding=2, bias=False)):
        if type(first) is nn.Conv2d:
            first.register_forward_hook(lambda module, args, output: output + 1)
        model = nn.Sequential(first, nn.Conv2d(4, 4, 3, padding=1, bias=False)).eval()
        assert not structural_zeros(fxq.prepare(model, x, leaf_modules=["0"]).graph_module)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.ConvTranspose1d, (2, 2, 5)), (nn.ConvTranspose2d, (1, 2, 1, 3)), (nn.ConvTranspose3d, (1, 2, 1, 1, 2))],
)
def test_output_padding_may_be_less_than_the_dilation_alone(kind, shape):
    """Torch gives such a size of itself, and refuses it where it is asked for."""
    torch.manual_seed(0)
    layer, x = kind(2, 4, 3, bias=False, dilation=2, output_padding=1).eval(), torch.randn(*shape)
    int8 = fxq.quantize(layer, [x], progress=False)
    assert float((int8(x) - layer(x)).detach().abs().max()) < 0.02 * float(layer(x).detach().abs().max())
