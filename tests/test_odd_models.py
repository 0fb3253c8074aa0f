"""Models as people write them, not as tables expect them: every form stays close, or says what it cannot do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from fxquant.measure.parity import measure_parity
from fxquant.observers import FixedQParamsObserver, MinMaxObserver
from fxquant.plan.spec import Fixed, TensorRef
from tests.outputs import rounding_outputs

CLOSE = 25.0
"""dB of SQNR that 8 bits reach on a few layers; a structural error gives less than 12."""


class Fn(nn.Module):
    def __init__(self, function, **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def bn(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.2, 3)
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    return norm


def sqnr(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


def every_form(model: nn.Module, x: Tensor, qconfig=None) -> fxq.Quantizer:
    """Prepare, calibrate, and hold each form against float and against the contract."""
    torch.manual_seed(0)
    model.eval()
    prepared = fxq.calibrate(fxq.prepare(model, x, qconfig), [x], progress=False)
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(prepared(x), expected)
        for to in ("fake_quant", "reference", "int8"):
            got = fxq.convert(prepared, to=to)(x)
            assert got.shape == expected.shape
            assert sqnr(expected, got) > CLOSE, to
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    assert measure_parity(int8, simulated, (x,)).breaches == ()
    return prepared


IMAGE = torch.rand(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.rand(16, 6, generator=torch.Generator().manual_seed(0))

MODELS = {
    "a weight that is read elsewhere": (Fn(lambda m, x: m.l(x) - m.l.weight[0], l=nn.Linear(6, 6)), ROWS),
    "tied weights": (Fn(lambda m, x: m.l(x) @ m.l.weight, l=nn.Linear(6, 6)), ROWS),
    "the bias of a folded convolution that is read elsewhere": (
        Fn(lambda m, x: torch.sub(m.b(m.c(x)), m.c.bias.reshape(1, -1, 1, 1)), c=nn.Conv2d(4, 3, 1), b=bn(3)),
        IMAGE,
    ),
    "a pool as large as its input": (
        Fn(lambda m, x: F.avg_pool2d(y := m.c(x), y.size(3)), c=nn.Conv2d(4, 3, 3)),
        IMAGE,
    ),
    "a pool of a computed size": (
        Fn(lambda m, x: F.adaptive_avg_pool2d(m.c(x), x.shape[-2:]), c=nn.Conv2d(4, 3, 3)),
        IMAGE,
    ),
    "a concatenation along a computed dimension": (
        Fn(lambda m, x: torch.cat([m.c(x), x], x.dim() - 3), c=nn.Conv2d(4, 3, 1)),
        IMAGE,
    ),
    "a convolution that is broadcast to its residual": (
        Fn(lambda m, x: m.c(F.adaptive_avg_pool2d(x, 1)) + x, c=nn.Conv2d(4, 4, 1)),
        IMAGE,
    ),
    "one output channel that is broadcast": (Fn(lambda m, x: m.c(x) + x, c=nn.Conv2d(4, 1, 3, padding=1)), IMAGE),
    "a residual that is broadcast": (Fn(lambda m, x: m.c(x) + x[:, :1], c=nn.Conv2d(4, 4, 3, padding=1)), IMAGE),
    "a value added to itself": (Fn(lambda m, x: (y := m.c(x)) + y, c=nn.Conv2d(4, 4, 1)), IMAGE),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_form_is_close(name):
    every_form(*MODELS[name])


def double(module, args, output):
    return output * 2


def one_more(module, args):
    return (args[0] + 1,)


def test_hooks_of_the_whole_model_run_while_calibrating():
    model = nn.Sequential(nn.Conv2d(4, 3, 1), nn.ReLU())
    nn.init.uniform_(model[0].weight, -0.5, 0.5)
    nn.init.zeros_(model[0].bias)  # channels that the activation cuts off throughout are warned of
    model.register_forward_pre_hook(one_more)
    model.register_forward_hook(double)
    prepared = every_form(model, IMAGE)
    assert float(prepared.observers["input_1"].min_val) >= 1.0


def test_values_that_are_not_finite_are_reported():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(6, 6)
            self.register_buffer("mask", torch.zeros(6).index_fill(0, torch.tensor([1, 3]), float("-inf")))

        def forward(self, x: Tensor) -> Tensor:
            return self.l(x) + self.mask

    prepared = fxq.prepare(Masked().eval(), ROWS, rounding_outputs())
    with pytest.warns(FxQuantWarning) as caught:
        fxq.calibrate(prepared, [ROWS], progress=False)
    fxq.convert(prepared)
    assert str(caught[0].message) == (
        "calibration met values that are inf or NaN; the qparams were chosen from the others\n"
        "  got:      mask (add input): 2 values, first in batch 0\n"
        "            add (add output): 32 values, first in batch 0\n"
        "  hint:     look at the batch that is named, and at the value named first: the others may follow from it. "
        "Quantized, infinity is the last step and NaN the first: set_module_name(name, None) keeps an operator that "
        "needs them (a mask of -inf, say) in float"
    )


def test_a_fixed_observer_is_never_overruled():
    scheme = fxq.QScheme(signed=False)
    fixed = fxq.QConfig(
        activation=FixedQParamsObserver.with_args(scale=1 / 16, zero_point=100, scheme=scheme),
        weight=fxq.get_default_qconfig().weight,
    )
    model = Fn(lambda m, x: torch.cat([m.c(x), m.d(x)], 1), c=nn.Conv2d(4, 3, 1), d=nn.Conv2d(4, 3, 1))
    prepared = every_form(model, IMAGE, rounding_outputs().set_module_name("c", fixed))
    policy = prepared.plan.policies[TensorRef("c")]
    assert isinstance(policy, Fixed)
    assert (float(policy.qparams.scale), int(policy.qparams.zero_point)) == (1 / 16, 100)
    assert prepared.plan.qparams_owner(TensorRef("d")) == TensorRef("cat")


def narrow(bits: int) -> fxq.QConfig:
    return fxq.QConfig(
        activation=MinMaxObserver.with_args(scheme=fxq.QScheme(bits=bits, signed=False)),
        weight=fxq.get_default_qconfig().weight,
    )


def test_a_concatenation_leaves_other_widths_alone():
    model = Fn(lambda m, x: torch.cat([m.c(x), m.d(x)], 1), c=nn.Conv2d(4, 3, 1), d=nn.Conv2d(4, 3, 1)).eval()
    rules = rounding_outputs().set_module_name("c", narrow(4))
    plan = fxq.prepare(model, IMAGE, rules).plan
    assert plan.qparams_owner(TensorRef("c")) == TensorRef("c")
    assert plan.qparams_owner(TensorRef("d")) == TensorRef("cat")


def test_readers_that_disagree_leave_an_input_to_the_global_rule():
    model = Fn(lambda m, x: m.c(x) * m.d(x), c=nn.Conv2d(4, 3, 1), d=nn.Conv2d(4, 3, 1)).eval()
    for name in ("c", "d"):
        rules = fxq.get_default_qconfig_mapping().set_module_name(name, narrow(4))
        prepared = fxq.prepare(model, IMAGE, rules)
        assert prepared.observers["x"].scheme.bits == 8
    agreeing = fxq.get_default_qconfig_mapping().set_object_type(nn.Conv2d, narrow(4))
    assert fxq.prepare(model, IMAGE, agreeing).observers["x"].scheme.bits == 4


def test_batches_must_bind_what_the_example_bound():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 2)

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            return self.a(x) if y is None else self.a(x) + self.a(y)

    prepared = fxq.prepare(Two().eval(), ROWS, example_kwargs={"y": ROWS})
    with pytest.raises(fxq.FxQuantError) as caught:
        fxq.calibrate(prepared, [(ROWS,)], progress=False)
    assert str(caught.value) == (
        "calibration batch 0: the inputs hold no tensor for the argument 'y'\n"
        "  got:      None\n"
        "  expected: float32[16, 6]\n"
        "  hint:     inputs must bind the same arguments as the example inputs that prepare was given"
    )
