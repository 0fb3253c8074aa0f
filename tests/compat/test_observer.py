"""Observers and fake-quantize modules give torch.ao's numbers, warnings and errors under its names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fxquant.compat import fake_quantize, observer
from fxquant.compat.duck_typing import scheme_of
from fxquant.compat.foreign import constructor_of
from fxquant.compat.qconfig import QConfig, default_debug_qconfig
from fxquant.compat.qconfig_mapping import QConfigMapping
from fxquant.compat.quantize_fx import prepare_fx
from fxquant.errors import FxQuantWarning, SpecError, StateError
from tests.sampling import one_of

CONSTRUCTORS = [name for name in observer.__all__ if name.startswith(("default_", "weight_", "per_channel"))]
CHOOSE = [name for name in CONSTRUCTORS if not any(word in name for word in ("dynamic", "debug", "place", "reuse"))]


def values() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 16, generator=generator) * (1 + i) for i in range(3)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHOOSE)
def test_qparams_are_those_of_torch_ao(name):
    theirs = pytest.importorskip("torch.ao.quantization.observer")
    ours, other = getattr(observer, name)(), getattr(theirs, name)()
    for x in values():
        assert torch.equal(ours(x), x)
        other(x)
    scale, zero_point = ours.calculate_qparams()
    other_scale, other_zero_point = other.calculate_qparams()
    torch.testing.assert_close(scale, torch.as_tensor(other_scale).reshape(-1), rtol=2e-7, atol=0)
    torch.testing.assert_close(
        zero_point.float(), torch.as_tensor(other_zero_point).reshape(-1).float(), rtol=1e-6, atol=1e-6
    )
    assert (ours.quant_min, ours.quant_max) == (other.quant_min, other.quant_max)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bins", one_of(3, [2, 3, 10]))
def test_histograms_are_those_of_torch_ao(bins):
    theirs = pytest.importorskip("torch.ao.quantization.observer")
    ours, other = observer.HistogramObserver(bins=bins), theirs.HistogramObserver(bins=bins)
    for x in (*values(), torch.full((3,), 20.0)):
        ours(x)
        other(x)
        assert torch.equal(ours.histogram, other.histogram)
    assert torch.equal(ours.calculate_qparams()[0], other.calculate_qparams()[0])
    again = observer.HistogramObserver(bins=bins)
    again.load_state_dict(other.state_dict(), strict=False)
    assert torch.equal(again.calculate_qparams()[0], ours.calculate_qparams()[0])


def test_histogram_of_one_value_and_of_infinity():
    made = observer.HistogramObserver()
    made(torch.full((4,), 2.0))
    made(torch.tensor([1.0, 3.0]))
    assert (float(made.min_val), float(made.max_val), float(made.histogram.sum())) == (1.0, 3.0, 6.0)
    with pytest.warns(FxQuantWarning, match=r"torch\.inf"):
        made(torch.tensor([torch.inf, 4.0]))
    assert float(made.max_val) == 4.0
    made.reset_min_max_vals()
    assert float(made.histogram.sum()) == 0


@pytest.mark.parametrize("kind", ["MinMaxObserver", "HistogramObserver", "PerChannelMinMaxObserver"])
def test_what_has_seen_nothing_warns_and_answers(kind):
    with pytest.warns(FxQuantWarning, match="must run observer"):
        scale, zero_point = getattr(observer, kind)().calculate_qparams()
    assert (scale.tolist(), zero_point.tolist()) == ([1.0], [0])


@pytest.mark.filterwarnings("ignore:.*jit")
@pytest.mark.parametrize("kind", ["MinMaxObserver", "MovingAverageMinMaxObserver", "PerChannelMinMaxObserver"])
def test_observers_can_be_scripted(kind):
    made = getattr(observer, kind)()
    scripted = torch.jit.script(getattr(observer, kind)())
    for x in values():
        made(x)
        scripted(x)
    assert torch.equal(scripted.calculate_qparams()[0], made.calculate_qparams()[0])


def test_errors_have_torch_ao_s_classes():
    with pytest.raises(NotImplementedError):
        observer.HistogramObserver(qscheme=torch.per_channel_affine)
    with pytest.raises(NotImplementedError):
        observer.MinMaxObserver(qscheme=torch.per_channel_affine)
    with pytest.raises(NotImplementedError):
        observer.PerChannelMinMaxObserver(is_dynamic=True)
    with pytest.raises(NotImplementedError):
        observer.MovingAverageMinMaxObserver(is_dynamic=True)
    with pytest.raises(Exception, match="should not be called"):
        observer.PlaceholderObserver().calculate_qparams()
    assert observer.PlaceholderObserver.with_args(dtype=torch.float16)().dtype == torch.float16


def test_constructors():
    made = observer.MinMaxObserver.with_args(quant_max=63).with_args(dtype=torch.quint8)
    assert made.p.keywords == {"quant_max": 63, "dtype": torch.quint8}
    assert made().quant_max == 63
    assert repr(made).startswith("MinMaxObserver.with_args(quant_max=63")
    places = iter(["cpu", "cpu"])
    later = observer.MinMaxObserver.with_callable_args(factory_kwargs=lambda: {"device": next(places)})
    later.with_args(quant_max=63)()
    assert next(places) == "cpu"


def test_recording_keeps_values():
    made = observer.RecordingObserver()
    made(torch.ones(2))
    assert [x.tolist() for x in made.get_tensor_value()] == [[1.0, 1.0]]


class Largest(observer.UniformQuantizationObserverBase):
    """An observer of the user's own."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.top = torch.tensor(0.0)

    def forward(self, x):
        self.top = torch.maximum(self.top, x.max())
        return x

    def calculate_qparams(self):
        return self._calculate_qparams(torch.tensor(0.0), self.top)


def test_observers_of_the_users_own_go_into_ours():
    made = constructor_of(Largest.with_args(quant_max=127))()
    made(torch.tensor([1.0, 12.7]))
    assert made.scheme.quant_max == 127
    assert float(made.calculate_qparams()[0]) == pytest.approx(0.1)
    assert isinstance(observer.MinMaxObserver(), observer.ObserverBase)
    assert isinstance(observer.MinMaxObserver(), observer.UniformQuantizationObserverBase)
    assert scheme_of(nn.Identity()) is None
    with pytest.raises(SpecError, match="makes no observer"):
        constructor_of(nn.ReLU)


def test_observer_states_are_saved_and_loaded():
    model = nn.Sequential(nn.Linear(2, 2))
    model.activation_post_process_0 = observer.MinMaxObserver()
    model.activation_post_process_0(torch.tensor([1.0, 2.0]))
    saved = copy.deepcopy(observer.get_observer_state_dict(model))
    assert set(saved) == {
        f"activation_post_process_0.{name}" for name in ("eps", "min_val", "max_val", "nonfinite_count")
    }
    model.activation_post_process_0.reset_min_max_vals()
    observer.load_observer_state_dict(model, saved)
    assert float(model.activation_post_process_0.max_val) == 2.0
    with pytest.raises(StateError, match="other observers"):
        observer.load_observer_state_dict(nn.Linear(2, 2), saved)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in vars(fake_quantize) if name.startswith(("default_", "fused_"))])
def test_fake_quantize_modules_round_as_torch_ao_s(name):
    theirs = pytest.importorskip("torch.ao.quantization.fake_quantize")
    if name.startswith("default_fixed_qparams_range") and not hasattr(theirs, name):
        return  # the observers of these are in the other file
    ours, other = getattr(fake_quantize, name)(), getattr(theirs, name)()
    x = values()[0]
    step = float(torch.as_tensor(other(x) is not None and other.scale).max())
    assert (ours(x) - other(x)).abs().max() <= step * 1.01
    assert torch.allclose(ours.scale.reshape(-1), other.scale.reshape(-1), rtol=5e-3)
    assert (ours.quant_min, ours.quant_max) == (other.quant_min, other.quant_max)


@pytest.mark.filterwarnings("ignore")
def test_fake_quantize_modules_of_others_keep_their_switches():
    ao = pytest.importorskip("torch.ao.quantization")

    class Own(ao.FakeQuantize):
        """A class derived from one of torch.ao."""

    made = constructor_of(Own.with_args(observer=ao.MinMaxObserver, quant_min=0, quant_max=255))()
    made.disable_observer()
    assert int(made.inner.observer_enabled) == 0
    x = torch.randn(4)
    assert torch.equal(made(x), made.inner(x))
    assert made.has_qparams() in (True, False)


@pytest.mark.filterwarnings("ignore")
def test_attributes_of_an_observer_that_stands_inside_another_are_shown():
    class Own(observer.ObserverBase):
        """Derived from neither library's observers; it has an attribute and a method of its own."""

        def __init__(self) -> None:
            super().__init__(torch.quint8)
            self.register_buffer("top", torch.zeros(()))

        def forward(self, x):
            self.top.copy_(x.abs().max())
            return x

        def calculate_qparams(self):
            return self.top.reshape(1) / 100, torch.tensor([128])

        def twice(self):
            return 2 * self.top

    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(3, 4)
    for make, look in ((Own, lambda own: own.twice() / 2), (observer.RecordingObserver, lambda own: own.tensor_val[0])):
        rules = QConfigMapping().set_global(QConfig(make, observer.default_weight_observer))
        prepared = prepare_fx(model, rules, (x,))
        prepared(x)
        for graph in (prepared, copy.deepcopy(prepared)):
            seen = look(graph.activation_post_process_0)
            assert torch.equal(seen, x if seen.dim() else x.abs().max())
        with pytest.raises(AttributeError, match="no attribute 'no_such'"):
            _ = prepared.activation_post_process_0.no_such


@pytest.mark.filterwarnings("ignore")
def test_default_debug_qconfig_keeps_the_tensors():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(3, 4)
    prepared = prepare_fx(model, QConfigMapping().set_global(default_debug_qconfig), (x,))
    prepared(x), prepared(2 * x)
    kept = prepared.activation_post_process_0.tensor_val
    assert [torch.equal(each, x * n) for n, each in enumerate(kept, 1)] == [True, True]


@pytest.mark.filterwarnings("ignore")
def test_a_foreign_fake_quantize_module_shows_its_attributes():
    theirs = pytest.importorskip("torch.ao.quantization")

    class Own(theirs.FakeQuantize):
        note = "own"

    made = constructor_of(Own)()
    assert (made.note, made.qscheme) == ("own", torch.per_tensor_affine)
    assert not hasattr(
        made, "activation_post_process"
    )  # of another library: nothing of fxquant may take it for its own
