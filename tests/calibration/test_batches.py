"""Batches: what they may look like, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fxquant as fxq
from fxquant.calibration.batches import inputs_of
from fxquant.errors import CalibrationError, InputError
from tests.calibration.network import ranges

BATCHES = {
    "tensors": lambda x: [x, x],
    "pairs with a label": lambda x: [(x, torch.zeros(len(x)))],
    "lists with a label": lambda x: [[x, torch.zeros(len(x))]],
    "keyword dicts": lambda x: [{"x": x}],
    "a generator": lambda x: (x for _ in range(2)),
    "a data loader": lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=2),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_kinds_of_batches(model, kind):
    x = torch.randn(4, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x[:1]), BATCHES[kind](x), progress=False)
    assert ranges(prepared)["x"] == (float(x.min()), float(x.max()))


def test_several_inputs_and_a_label():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.a(x) + self.b(y)

    x, y = torch.rand(2, 3), torch.rand(2, 4) + 5
    prepared = fxq.calibrate(fxq.prepare(Two().eval(), (x, y)), [(x, y, torch.zeros(2))], progress=False)
    assert ranges(prepared)["y"][1] == float(y.max())


def test_num_batches_stops_early(model):
    x = torch.randn(1, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x, x * 100], num_batches=1, progress=False)
    assert ranges(prepared)["x"][1] == float(x.max())


def test_the_progress_bar_counts_batches(model, capsys):
    x = torch.randn(1, 3, 8, 8)
    fxq.calibrate(fxq.prepare(model, x), [x, x, x])
    assert "3/3" in capsys.readouterr().err
    fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    assert capsys.readouterr().err == ""


ERRORS = {
    "a lone tensor": (
        lambda x: x,
        InputError,
        """\
calibration data must be an iterable of batches
  got:      float32[1, 3, 8, 8]
  expected: a DataLoader, a list, a generator: anything that yields batches
  hint:     [batch] is a list of one batch""",
    ),
    "no batch": (
        lambda x: [],
        CalibrationError,
        """\
there is no calibration data
  got:      no batch
  expected: at least one batch""",
    ),
    "a batch of integers": (
        lambda x: [x.to(torch.uint8)],
        InputError,
        """\
calibration batch 0 is of the wrong kind (input 0)
  got:      uint8[1, 3, 8, 8]
  expected: float32[1, 3, 8, 8]
  hint:     batches must look like the example inputs that prepare was given; their size may differ""",
    ),
    "a path": (
        lambda x: [x, "image.png"],
        InputError,
        """\
calibration batch 1 is of the wrong kind (input 0)
  got:      'image.png'
  expected: float32[1, 3, 8, 8]
  hint:     batches must look like the example inputs that prepare was given; their size may differ""",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_wrong_data_is_named(model, kind):
    make, error, text = ERRORS[kind]
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(error) as caught:
        fxq.calibrate(fxq.prepare(model, x), make(x), progress=False)
    assert str(caught.value) == text


def test_too_few_inputs_are_named():
    with pytest.raises(InputError) as caught:
        inputs_of((torch.rand(2),), (torch.rand(2), torch.rand(3)), "batch 7", nn.Bilinear(2, 3, 1))
    assert str(caught.value) == (
        "batch 7 holds too few inputs\n  got:      (float32[2],)\n  expected: (float32[2], float32[3])"
    )


class Endless(IterableDataset):
    """Knows no length, so a DataLoader of it knows none either."""

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.randn(3, 8, 8)


@pytest.mark.parametrize("progress", [True, False])
def test_a_data_loader_may_have_no_length(model, progress, capsys):
    loader = DataLoader(Endless(), batch_size=2)
    with pytest.raises(TypeError):
        len(loader)
    prepared = fxq.prepare(model, torch.randn(2, 3, 8, 8))
    assert fxq.calibrate(prepared, loader, num_batches=3, progress=progress).calibration_report().batches == 3
    fxq.quantize(model, loader, num_batches=2, progress=progress)
    if progress:
        assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("number", [-1, 0, 1.5, "2", True])
def test_what_is_no_number_of_batches_is_refused(model, number):
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(InputError) as caught:
        fxq.calibrate(fxq.prepare(model, x), [x], num_batches=number, progress=False)
    assert str(caught.value) == (
        "num_batches is no number of batches\n"
        f"  got:      {number!r}\n"
        "  expected: 1 or more, or None for all that the data holds\n"
        "  hint:     leave num_batches out to use all batches"
    )


def test_batches_without_a_sample_are_no_calibration() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    prepared = fxq.prepare(model, torch.rand(2, 8))
    with pytest.raises(CalibrationError, match=r"holds no values\n  got: *2 batches of zero samples"):
        fxq.calibrate(prepared, [torch.rand(0, 8)] * 2, progress=False)
    fxq.calibrate(prepared, [torch.rand(0, 8), torch.rand(64, 8)], progress=False)
