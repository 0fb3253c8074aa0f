from __future__ import annotations

import pytest
import torch

from fxquant.demo.comparison import Comparison


@pytest.fixture
def found() -> Comparison:
    """Three images, seven classes; float is right on the first two, int8 on the first and the third."""
    exact = torch.zeros(3, 7)
    exact[0, 1], exact[1, 2], exact[2, 3] = 5, 5, 5
    rough = exact.clone()
    rough[1, 4] = 6
    rough[2, 0] = 6
    return Comparison(
        labels=torch.tensor([1, 2, 0]),
        float_logits=exact,
        int8_logits=rough,
        milliseconds={"float": 20.0, "int8": 5.0},
        file_bytes={"float": 14_000_000, "int8": 4_000_000},
    )


def test_counts(found: Comparison) -> None:
    assert found.correct(1) == {"float": 2, "int8": 2}
    assert found.correct(5)["int8"] == 3
    assert found.agreement == 1
    assert found.speed_up == 4
    assert found.shrinkage == 3.5


def test_best_gives_class_and_probability(found: Comparison) -> None:
    chosen, confidence = found.best("int8")[1]
    assert chosen == 4
    assert confidence == pytest.approx(torch.softmax(found.int8_logits[1], dim=0).max().item())


def test_rows_are_what_the_demo_prints(found: Comparison) -> None:
    assert found.rows() == [
        ("top-1", "2 of 3", "2 of 3", ""),
        ("top-5", f"{found.correct(5)['float']} of 3", "3 of 3", ""),
        ("same class as float", "", "1 of 3", ""),
        ("SQNR of the logits", "", "0.2 dB", ""),  # 3 * 25 over 2 * 36
        ("one image", "20.0 ms", "5.0 ms", "4.0 times faster"),
        ("file", "14.0 MB", "4.0 MB", "3.5 times smaller"),
    ]
