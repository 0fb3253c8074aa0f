"""Weights as matrices, and products of inputs: the error that they give is that of the outputs of the layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.plan.spec import QParams, QScheme
from fxquant.training.input_products import InputProducts
from fxquant.training.weight_matrix import WeightMatrix, from_matrices

LAYERS = {
    "linear": (nn.Linear(6, 4), (3, 5, 6)),
    "conv1d": (nn.Conv1d(4, 6, 4, padding="same", padding_mode="reflect"), (2, 4, 9)),
    "grouped": (nn.Conv2d(8, 6, (3, 2), stride=2, padding=1, groups=2), (2, 8, 7, 6)),
    "depthwise": (nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4), (2, 4, 6, 6)),
    "conv3d": (nn.Conv3d(2, 4, (1, 2, 3), padding=(0, 1, 1)), (2, 2, 3, 4, 5)),
    "no batch": (nn.Conv2d(2, 3, 3), (2, 6, 5)),
    "transposed": (nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=1, output_padding=1), (2, 4, 4, 3)),
    "transposed, grouped": (nn.ConvTranspose1d(4, 6, 3, stride=3, dilation=2, groups=2), (2, 4, 5)),
    "transposed, depthwise": (nn.ConvTranspose2d(4, 4, 2, stride=2, groups=4), (4, 4, 3)),
    "transposed, cut off": (nn.ConvTranspose3d(2, 4, (1, 1, 3), padding=(0, 1, 1)), (2, 2, 3, 4, 5)),
}
SCHEMES = {
    "tensor": QScheme(bits=4, symmetric=True),
    "channel": QScheme(bits=4, symmetric=True, axis=0),
    "inputs": QScheme(bits=4, symmetric=True, axis=1),
    "runs": QScheme(bits=4, signed=False, axis=0, group_size=2),
}


def qparams_of(scheme: QScheme, weight: Tensor) -> QParams:
    shape: tuple[int, ...] = (1,)
    if scheme.axis is not None:
        shape = (weight.shape[scheme.axis],)
    if scheme.group_size is not None:
        shape = (*shape, weight.shape[1] // scheme.group_size)
    generator = torch.Generator().manual_seed(0)
    scale = 0.05 + 0.05 * torch.rand(shape, generator=generator)
    return QParams(scheme, scale, torch.full(shape, 0 if scheme.signed else 7, dtype=torch.int32))


@pytest.mark.parametrize("granularity", SCHEMES)
@pytest.mark.parametrize("name", LAYERS)
def test_errors_are_those_of_the_outputs(name: str, granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, shape = LAYERS[name]
    scheme = SCHEMES[granularity]
    if scheme.group_size is not None and layer.weight.shape[1] % scheme.group_size:
        return
    monkeypatch.setattr("fxquant.training.input_products.VALUES_AT_ONCE", 100)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight, qparams = layer.weight.detach(), qparams_of(scheme, layer.weight)
    products = InputProducts(layer)
    products.add(x)
    products.add(x)
    matrix = WeightMatrix.of(weight, qparams, products.groups, products.transposed)

    integers = to_integers(weight, qparams.scale, qparams.zero_point, scheme)
    assert torch.equal(from_matrices(matrix.nearest, weight.shape, products.transposed), integers.double())
    rounded = type(layer).__new__(type(layer))
    rounded.__dict__.update(layer.__dict__)
    values = from_integers(integers, qparams.scale, qparams.zero_point, scheme)
    rounded._parameters = {**layer._parameters, "weight": nn.Parameter(values)}
    with torch.no_grad():
        error = (rounded(x) - layer(x)).double()
    expected = 2 * error.square().sum()
    found = matrix.errors(matrix.nearest, products.sums)
    assert torch.allclose(found.sum(), expected, rtol=1e-4)
    assert products.count == 2 * error.numel() // getattr(layer, "out_channels", len(weight))


@pytest.mark.parametrize(("groups", "axis"), [(1, 1), (4, 0)])
def test_each_output_of_a_transposed_weight_keeps_its_scale(groups: int, axis: int) -> None:
    weight = torch.randn(4, 6 if groups == 1 else 1, 3)
    qparams = qparams_of(QScheme(bits=4, symmetric=True, axis=axis), weight)
    matrix = WeightMatrix.of(weight, qparams, groups, True)
    assert matrix.by_row
    assert torch.equal(matrix.qparams(qparams).scale, qparams.scale)
    shared = QScheme(bits=4, symmetric=True, axis=1)
    two = torch.randn(4, 3, 3)
    assert not WeightMatrix.of(two, qparams_of(shared, two), 2, True).by_row  # a scale serves an output of each group


@pytest.mark.parametrize("granularity", SCHEMES)
def test_qparams_come_back_in_their_shape(granularity: str) -> None:
    weight = torch.randn(6, 4, 3, 2)
    qparams = qparams_of(SCHEMES[granularity], weight)
    back = WeightMatrix.of(weight, qparams, 2).qparams(qparams)
    assert torch.equal(back.scale, qparams.scale)
    assert torch.equal(back.zero_point, qparams.zero_point)
