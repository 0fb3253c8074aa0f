"""StaticFakeQuantize: fixed qparams, its state, and what is never calibrated; DynamicFakeQuantize: qparams of
each call."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from fxquant.errors import CalibrationError
from fxquant.fake_quantize import StaticFakeQuantize
from fxquant.fake_quantize.converted import DynamicFakeQuantize, qparams_of
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.observers import MinMaxObserver
from fxquant.plan.spec import Dynamic, QParams, QScheme

TENSOR = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32))
CHANNELS = QParams(QScheme(symmetric=True, axis=-1), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int32))
GROUPS = QParams(
    QScheme(bits=4, axis=0, group_size=3), torch.full((4, 1), 0.25), torch.full((4, 1), -2, dtype=torch.int32)
)
ALL = pytest.mark.parametrize("qparams", [TENSOR, CHANNELS, GROUPS], ids=["tensor", "channels", "groups"])


@ALL
def test_rounds_to_its_grid(qparams):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * 20
    module = StaticFakeQuantize(qparams)
    right = fake_quantize(x, qparams.scale, qparams.zero_point, qparams.scheme)
    assert torch.equal(module(x), right)
    assert module.qparams().same_qparams(qparams)
    assert not torch.equal(right, x)


@ALL
def test_state_round_trip(qparams):
    module = StaticFakeQuantize(qparams)
    state = module.state_dict()
    assert {name: value.dtype for name, value in state.items()} == {"scale": torch.float32, "zero_point": torch.int32}
    empty = QParams(qparams.scheme, torch.full_like(qparams.scale, math.nan), torch.zeros_like(qparams.zero_point))
    shell = StaticFakeQuantize(empty)
    x = torch.randn(4, 3)
    with pytest.raises(CalibrationError) as caught:
        shell(x)
    assert str(caught.value) == (
        "this fake-quantize module was never calibrated, so its qparams are unknown\n"
        f"  got:      scale = nan, {qparams.scheme}\n"
        "  hint:     calibrate before convert, or load a state dict that was saved after calibration"
    )
    for twin in (shell, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        twin.load_state_dict(state, strict=True)
        assert torch.equal(twin(x), module(x))


def test_the_given_tensors_are_copied():
    qparams = QParams(QScheme(), torch.tensor([0.5]), torch.tensor([0], dtype=torch.int32))
    module = StaticFakeQuantize(qparams)
    module.scale.fill_(2.0)
    assert qparams.scale.item() == 0.5


def test_casts_leave_the_grid_alone():
    module = StaticFakeQuantize(CHANNELS).half().double().bfloat16()
    assert module.qparams().same_qparams(CHANNELS)
    assert module(torch.randn(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert module.to("meta").scale.is_meta


def test_gradient_and_compile():
    module = StaticFakeQuantize(TENSOR)
    x = torch.tensor([-100.0, 0.04, 1.0, 100.0], requires_grad=True)
    module(x).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), module(x))


def test_repr():
    assert repr(StaticFakeQuantize(TENSOR)) == "StaticFakeQuantize(uint8 affine per tensor, scale=0.1, zero_point=3)"
    assert repr(StaticFakeQuantize(CHANNELS)) == (
        "StaticFakeQuantize(int8 symmetric per channel (axis -1), scale=[0.1, 0.3])"
    )


SCHEMES = (QScheme(signed=False), QScheme(symmetric=True), QScheme(bits=4, limits=(-7, 7)))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_call_is_calibrated_on_itself(scheme):
    module = DynamicFakeQuantize(Dynamic(scheme))
    for seed, factor in enumerate((1.0, 1e-3, 50.0)):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) * factor
        observer = MinMaxObserver(scheme=scheme)
        observer(x)
        qparams = observer.qparams()
        assert torch.equal(module(x), fake_quantize(x, qparams.scale, qparams.zero_point, scheme))
    assert module.state_dict() == {}


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_row_is_calibrated_on_itself(scheme):
    module, whole = DynamicFakeQuantize(Dynamic(scheme, per="token")), DynamicFakeQuantize(Dynamic(scheme))
    x = torch.randn(2, 3, 7) * torch.tensor([1.0, 1e-3, 50.0]).unsqueeze(1)
    assert torch.equal(module(x), torch.stack([torch.stack([whole(row) for row in rows]) for rows in x]))
    assert torch.equal(module(x[0, 0]), whole(x[0, 0]))
    flipped = x.transpose(0, 1)
    assert torch.equal(module(flipped), module(flipped.contiguous()))
    assert module(flipped).stride() == flipped.clone().stride()
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(module(x).sum(), x)
    (wanted,) = torch.autograd.grad(sum(whole(row).sum() for row in x.flatten(0, 1)), x)
    assert torch.equal(gradient, wanted)


def test_the_grid_is_float32_whatever_dtype_torch_makes_by_default(float64_by_default):
    qparams = qparams_of(torch.tensor([-1.0, 1.55]), Dynamic(SCHEMES[0]))
    assert qparams.scale.dtype == torch.float32
    assert qparams.zero_point.tolist() == [100]


def test_the_gradient_goes_straight_through():
    x = torch.randn(4, 7, requires_grad=True)
    DynamicFakeQuantize(Dynamic(SCHEMES[0]))(x).backward(torch.full_like(x, 3.0))
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


def test_what_is_no_number_saturates():
    policy = Dynamic(SCHEMES[0])
    y = DynamicFakeQuantize(policy)(torch.tensor([0.0, 1.0, math.inf, -math.inf, math.nan]))
    assert torch.equal(y, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0]))
    nothing = qparams_of(torch.tensor([math.nan, math.inf]), policy)
    assert (nothing.scale.item(), nothing.zero_point.item()) == (policy.eps, 0)


def test_the_smallest_scale():
    assert qparams_of(torch.zeros(3), Dynamic(SCHEMES[0], eps=0.5)).scale.item() == 0.5


def test_no_values_and_other_dtypes():
    module = DynamicFakeQuantize(Dynamic(SCHEMES[0]))
    assert module(torch.empty(0, 3)).shape == (0, 3)
    for dtype in (torch.float64, torch.bfloat16):
        assert module(torch.randn(3).to(dtype)).dtype == dtype


def test_printing():
    assert repr(DynamicFakeQuantize(Dynamic(SCHEMES[0]))) == "DynamicFakeQuantize(uint8 affine per tensor, per call)"
    module = DynamicFakeQuantize(Dynamic(SCHEMES[0], per="token"))
    assert repr(module) == "DynamicFakeQuantize(uint8 affine per token, per call)"
