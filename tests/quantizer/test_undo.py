"""A batch that fails leaves all that it reached as it was; calibration, the buffers that the model writes to."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.graph.module_state import undone_on_error
from fxquant.quantizer.undo import RunState

GOOD, TOO_LARGE = (4, 3, 8, 8), (4, 3, 16, 16)


class Net(nn.Module):
    """Takes images of 8 by 8: its linear layer fails on others, when all before it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.conv(x)).flatten(1))


MINMAX = fxq.QConfig(
    activation=fxq.MinMaxObserver.with_args(dtype=torch.quint8),
    weight=fxq.MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
)
QCONFIGS = {"default": None, "minmax": MINMAX}
FAILING = {
    "another size": lambda: 1000 * torch.randn(TOO_LARGE),
    "other channels": lambda: 1000 * torch.randn(4, 5, 8, 8),
}


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    torch.testing.assert_close(dict(module.state_dict()), state, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("qconfig", QCONFIGS)
@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_batch_that_fails_leaves_the_observers_as_they_were(qconfig, kind, calibrated):
    torch.manual_seed(0)
    good, more = torch.randn(GOOD), torch.randn(GOOD)
    prepared = fxq.prepare(Net().eval(), good, QCONFIGS[qconfig])
    if calibrated:
        fxq.calibrate(prepared, [good], progress=False)
    before = state_of(prepared.observers)
    with pytest.raises(InputError):
        fxq.calibrate(prepared, [FAILING[kind]()], progress=False)
    assert_same_state(prepared.observers, before)

    fxq.calibrate(prepared, [more], progress=False)
    assert prepared.observers["x"].max_val == (max(good.max(), more.max()) if calibrated else more.max())
    assert torch.isfinite(fxq.convert(prepared)(good)).all()


def test_it_holds_in_inference_mode():
    prepared = fxq.prepare(Net().eval(), torch.randn(GOOD))
    before = state_of(prepared.observers)
    with torch.inference_mode(), pytest.raises(InputError):
        prepared(torch.randn(TOO_LARGE))
    assert_same_state(prepared.observers, before)
    with torch.inference_mode():
        prepared(torch.randn(GOOD))
    with torch.inference_mode(), pytest.raises(InputError):
        prepared(torch.randn(TOO_LARGE))
    fxq.convert(prepared)


def test_a_hook_that_fails_after_the_run_counts_too():
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    model = Net().eval()
    prepared = fxq.prepare(model, torch.randn(GOOD))
    prepared.graph_module.register_forward_hook(fail)
    before = state_of(prepared.observers)
    with pytest.raises(KeyboardInterrupt):
        prepared(torch.randn(GOOD))
    assert_same_state(prepared.observers, before)


class Counter(nn.Module):
    """Kept whole: counts its calls in a buffer, in a number and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.number, self.sizes = 0, []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.number += 1
        self.sizes.append(len(x))
        return x


class Keeping(Net):
    """Writes to a buffer, through a view, before the layer that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen[1:2].add_(1.0)
        return super().forward(self.counter(x))


def test_what_the_model_keeps_is_put_back():
    prepared = fxq.prepare(Keeping().eval(), torch.randn(GOOD), leaf_modules=(Counter,))
    counter = prepared.root.get_submodule("counter")
    prepared(torch.randn(GOOD))
    before, number, sizes = state_of(prepared.graph_module), counter.number, list(counter.sizes)
    assert before["seen"][1] > 0
    with pytest.raises(InputError):
        prepared(torch.randn(TOO_LARGE))
    assert_same_state(prepared.graph_module, before)
    assert (counter.number, counter.sizes) == (number, sizes)
    again = pickle.loads(pickle.dumps(prepared))
    with pytest.raises(InputError):
        again(torch.randn(TOO_LARGE))
    assert_same_state(again.graph_module, before)
    again(torch.randn(GOOD))
    assert again.root.get_submodule("counter").number == number + 1


class Handler:
    """Measures in a module, a tensor and a number."""

    def __init__(self) -> None:
        self.observer, self.largest, self.batches = fxq.MinMaxObserver(), torch.zeros(()), 0

    def observe(self, x: Tensor) -> None:
        self.observer(x)
        self.largest.copy_(x.max())
        self.batches += 1


def test_handlers_are_put_back():
    handler = Handler()
    state = RunState(fxq.prepare(Net().eval(), torch.randn(GOOD)).graph_module, nn.Module(), [handler])

    def fail() -> None:
        with state.undone_on_error():
            handler.observe(torch.ones(3))
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail()
    assert handler.observer.max_val == -torch.inf
    assert (float(handler.largest), handler.batches) == (0.0, 0)


def test_nothing_is_undone_where_nothing_fails():
    module = Counter()
    with undone_on_error([module], ()):
        module(torch.ones(3))
    assert (int(module.calls), module.number, module.sizes) == (1, 1, [3])


class Stream(nn.Module):
    """Adds what the last batch gave."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.register_buffer("past", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        result = y + self.past
        self.past.copy_(y.mean(0))
        return result


@pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
def test_what_is_converted_begins_as_the_float_model_does(to):
    model, x = Stream().eval(), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    prepared = fxq.prepare(model, x)
    fxq.calibrate(prepared, [x + 3, x, x - 3], progress=False)
    assert not prepared.graph_module.past.any()
    converted = fxq.convert(prepared, to=to, check=x)
    assert not converted.past.any()
    with torch.no_grad():
        got, expected = [[each(x), each(x - 1)] for each in (converted, model)]
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.1)


class Measures(nn.Module):
    """Is kept whole, and keeps the largest value that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.peak = max(self.peak, float(x.max()))
        return x


def test_what_a_module_that_is_kept_whole_measures_is_kept():
    model, x = nn.Sequential(nn.Linear(3, 4), Measures()).eval(), torch.randn(5, 3)
    prepared = fxq.prepare(model, x, leaf_modules=(Measures,))
    fxq.calibrate(prepared, [x, x / 2], progress=False)
    kept = fxq.convert(prepared).get_submodule("1")
    assert kept.peak == float(model[0](x).detach().max())


def test_calls_of_what_is_prepared_keep_the_state_as_those_of_float_do():
    model, x = Stream().eval(), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    prepared = fxq.prepare(model, x)
    with torch.no_grad():
        for batch in (x, x + 1, x - 1):
            assert torch.equal(prepared(batch), model(batch))


def test_the_state_is_put_back_where_a_batch_fails_too():
    prepared = fxq.prepare(Stream().eval(), torch.randn(5, 3))
    with pytest.raises(InputError):
        fxq.calibrate(prepared, [torch.randn(5, 3), torch.randn(5, 7)], progress=False)
    assert not prepared.graph_module.past.any()
    assert torch.isfinite(prepared.observers["x"].min_val)
