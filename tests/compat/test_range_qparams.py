"""Methods of a user's observers that are derived from those of fxquant.compat say what is quantized, as in torch.ao."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxquant.compat import observer
from fxquant.compat.qconfig import QConfig
from fxquant.compat.qconfig_mapping import QConfigMapping
from fxquant.compat.quantize_fx import convert_fx, prepare_fx
from tests.sampling import one_of

pytestmark = pytest.mark.filterwarnings("ignore")


def public(base: Any) -> Any:
    class Own(base):
        def calculate_qparams(self):
            scale, zero_point = super().calculate_qparams()
            return scale * 2, zero_point

    return Own


def private(base: Any) -> Any:
    class Own(base):
        def _calculate_qparams(self, min_val, max_val):
            scale, zero_point = super()._calculate_qparams(min_val, max_val)
            return scale * 3, zero_point

    return Own


def both(base: Any) -> Any:
    return public(private(base))


def without_super(base: Any) -> Any:
    class Own(base):
        def calculate_qparams(self):
            return torch.tensor([0.125]), torch.tensor([3])

    return Own


def layer_by(prepare: Any, convert: Any, rules: Any) -> Any:
    """Convert a network with observers and return its first layer."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    prepared = prepare(model, rules, (x,))
    prepared(x)
    return convert(prepared).get_submodule("0")


def layers(derived: Any, name: str, is_weight: bool = False, **arguments: Any) -> tuple[Any, Any]:
    """Return the first layer that fxquant makes with a derived observer, and the one that torch.ao makes."""
    ao = pytest.importorskip("torch.ao.quantization")
    fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    found = []
    for home, qconfig in ((observer, QConfig), (ao, ao.QConfig)):
        own = derived(getattr(home, name)).with_args(**arguments)
        found.append(
            qconfig(home.default_observer, own) if is_weight else qconfig(own, home.default_per_channel_weight_observer)
        )
    ours = layer_by(prepare_fx, convert_fx, QConfigMapping().set_global(found[0]))
    return ours, layer_by(fx.prepare_fx, fx.convert_fx, ao.QConfigMapping().set_global(found[1]))


@pytest.mark.parametrize("name", ["MinMaxObserver", "MovingAverageMinMaxObserver", "HistogramObserver"])
@pytest.mark.parametrize("derived", one_of(3, [public, private, both, without_super]))
def test_activations(derived, name):
    ours, theirs = layers(derived, name)
    assert float(ours.y_scale) == pytest.approx(float(theirs.scale), rel=1e-5)
    assert int(ours.y_zero_point) == int(theirs.zero_point)


def test_fixed_qparams():
    ours, theirs = layers(without_super, "FixedQParamsObserver", scale=0.25, zero_point=7)
    assert (float(ours.y_scale), int(ours.y_zero_point)) == (float(theirs.scale), int(theirs.zero_point)) == (0.125, 3)


@pytest.mark.parametrize("name", ["PerChannelMinMaxObserver", "MovingAveragePerChannelMinMaxObserver"])
@pytest.mark.parametrize("derived", [public, private, both])
def test_weights(derived, name):
    ours, theirs = layers(derived, name, is_weight=True, dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    torch.testing.assert_close(
        ours.weight_scale.flatten(), theirs.weight().q_per_channel_scales().float(), rtol=1e-5, atol=0
    )


def test_a_class_that_keeps_no_range_is_asked_without_one():
    class Own(observer.MinMaxObserver):
        def forward(self, x):
            self.top = x.abs().max()
            return x

        def calculate_qparams(self):
            return self.top.reshape(1) / 127, torch.tensor([128])

    own = Own()
    own(torch.tensor([-254.0, 3.0]))
    assert (own.qparams().scale.tolist(), own.qparams().zero_point.tolist()) == ([2.0], [128])


def test_reduced_unsigned_symmetric_values_have_the_middle_of_their_limits():
    own = public(observer.MinMaxObserver)(qscheme=torch.per_tensor_symmetric, reduce_range=True)
    own(torch.tensor([-1.0, 1.0]))
    assert own.calculate_qparams()[1].tolist() == [128]
    assert own.qparams().zero_point.tolist() == [64]


def test_qparams_of_ones_own_stand_over_the_answers():
    class Own(observer.MinMaxObserver):
        def qparams(self):
            found = super().qparams()
            return type(found)(found.scheme, found.scale * 4, found.zero_point)

    own, plain, x = Own(), observer.MinMaxObserver(), torch.tensor([-1.0, 3.0])
    own(x), plain(x)
    assert own.qparams().scale.item() == own.calculate_qparams()[0].item() == plain.qparams().scale.item() * 4


@pytest.mark.parametrize("name", ["MinMaxObserver", "PerChannelMinMaxObserver", "MovingAverageMinMaxObserver"])
def test_in_torch_script(name):
    own = getattr(observer, name)()
    scripted, x = torch.jit.script(getattr(observer, name)()), torch.randn(4, 3)
    scripted(x), own(x)
    torch.testing.assert_close(scripted.calculate_qparams(), own.calculate_qparams())
