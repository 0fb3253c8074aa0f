from __future__ import annotations

import pytest
import torch

from fxquant.errors import SampleError
from fxquant.samples.digits import DigitNet, digits, train_digits


def test_the_parts_are_all_there_is() -> None:
    parts = [digits("train"), digits("test")]
    assert [(*images.shape, len(labels)) for images, labels in parts] == [(1200, 1, 8, 8, 1200), (597, 1, 8, 8, 597)]
    for images, labels in parts:
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert (images.min().item(), images.max().item()) == (0.0, 1.0)
        assert set(labels.tolist()) == set(range(10))
    assert parts[0][0][0, 0, 0].mul(16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]  # as in the file


def test_another_part_is_refused() -> None:
    with pytest.raises(SampleError) as refusal:
        digits("tests")  # type: ignore[arg-type]
    assert str(refusal.value).splitlines() == [
        "the digits have no such part",
        "  got:      'tests'",
        "  expected: 'train' or 'test'",
        "  hint:     did you mean 'test'?",
    ]


def test_the_network_learns() -> None:
    torch.manual_seed(0)
    model = train_digits(DigitNet(channels=8), epochs=3)
    images, labels = digits("test")
    assert not model.training
    with torch.no_grad():
        assert (model(images).argmax(1) == labels).float().mean() > 0.8
