"""Min-max observers in TorchScript: they measure and answer as outside of it."""

from __future__ import annotations

import io

import pytest
import torch

from fxquant.observers import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
)
from fxquant.observers.base import ObserverBase

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")

MAKERS = {
    "minmax": MinMaxObserver,
    "symmetric": MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric", eps=0.125),
    "average": MovingAverageMinMaxObserver.with_args(averaging_constant=0.25),
    "per channel": PerChannelMinMaxObserver.with_args(ch_axis=1),
    "average per channel": MovingAveragePerChannelMinMaxObserver.with_args(ch_axis=-1, bits=4, averaging_constant=1),
    "float qparams": PerChannelMinMaxObserver.with_args(qscheme="per_channel_affine_float_qparams"),
}


class Asked(torch.nn.Module):
    """What a model does with an observer."""

    def __init__(self, observer: ObserverBase) -> None:
        super().__init__()
        self.observer = observer

    def forward(self, x: torch.Tensor):
        self.observer(x)
        return self.observer.calculate_qparams()


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(6, 10, generator=generator) * (i + 1) for i in range(3)]
    found[1][2, 3] = torch.nan
    found[2][0, 0] = torch.inf
    return [*found, torch.zeros(6, 10), torch.arange(60).reshape(6, 10)]


@pytest.mark.parametrize("name", MAKERS)
def test_it_measures_and_answers_as_outside(name: str) -> None:
    eager, inside = MAKERS[name](), MAKERS[name]()
    scripted = torch.jit.script(Asked(inside))
    for x in batches():
        eager(x)
        right, answer = eager.calculate_qparams(), scripted(x)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(answer, right, strict=True))
    state = {name.removeprefix("observer."): value for name, value in scripted.state_dict().items()}
    assert state.keys() == eager.state_dict().keys()
    assert all(torch.equal(value, state[key]) for key, value in eager.state_dict().items())


def test_it_is_saved_and_loaded() -> None:
    scripted = torch.jit.script(Asked(MinMaxObserver()))
    scripted(torch.tensor([-1.0, 2.0]))
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    scale, _ = torch.jit.load(file)(torch.tensor([0.0]))
    assert scale.item() == pytest.approx(3 / 255)


def test_no_answer_without_data() -> None:
    with pytest.raises(torch.jit.Error, match="has seen no data"):
        torch.jit.script(Asked(MinMaxObserver()))(torch.empty(0))


def test_an_observer_that_needs_python_says_so() -> None:
    with pytest.raises(torch.jit.Error, match="this observer cannot measure in TorchScript"):
        torch.jit.script(Asked(HistogramObserver()))(torch.ones(3))
