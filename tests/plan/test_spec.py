from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fxquant.errors import SpecError
from fxquant.plan.spec import Clamp, Fixed, Observed, QParams, QScheme, SharedWith, TensorRef


def message(**fields):
    with pytest.raises(SpecError) as caught:
        QScheme(**fields)
    return str(caught.value)


def qparams(scheme=QScheme(), scale=(0.5,), zero_point=(3,)):  # noqa: B008 (frozen)
    dtype = torch.float32 if scheme.float_qparams else torch.int32
    return QParams(scheme, torch.tensor(scale), torch.tensor(zero_point, dtype=dtype))


@pytest.mark.parametrize(
    ("fields", "quant_min", "quant_max", "dtype"),
    [
        ({}, -128, 127, torch.int8),
        ({"signed": False}, 0, 255, torch.uint8),
        ({"bits": 2}, -2, 1, torch.int8),
        ({"bits": 4, "signed": False}, 0, 15, torch.uint8),
        ({"bits": 9}, -256, 255, torch.int16),
        ({"bits": 16}, -32768, 32767, torch.int16),
        ({"bits": 16, "signed": False}, 0, 65535, torch.int32),
        ({"limits": (-127, 127)}, -127, 127, torch.int8),
        ({"signed": False, "limits": (0, 127)}, 0, 127, torch.uint8),
    ],
)
def test_the_grid(fields, quant_min, quant_max, dtype):
    scheme = QScheme(**fields)
    assert (scheme.quant_min, scheme.quant_max, scheme.dtype) == (quant_min, quant_max, dtype)


@settings(deadline=None)
@given(bits=st.integers(2, 16), signed=st.booleans())
def test_every_grid_fits_its_dtype_and_holds_all_integers_of_its_bits(bits, signed):
    scheme = QScheme(bits=bits, signed=signed)
    stored = torch.iinfo(scheme.dtype)
    assert stored.min <= scheme.quant_min < scheme.quant_max <= stored.max
    assert scheme.quant_max - scheme.quant_min + 1 == 2**bits
    assert scheme.full_range == (scheme.quant_min, scheme.quant_max)


@pytest.mark.parametrize(
    ("bits", "shown"),
    [*((number, str(number)) for number in (1, 17, 0, -8, 8.0)), (True, "True (a bool)"), ("8", "'8' (a str)")],
)
def test_bits_out_of_range(bits, shown):
    assert message(bits=bits) == f"bits is out of range\n  got:      {shown}\n  expected: a whole number from 2 to 16"


@pytest.mark.parametrize("axis", [True, 0.5, "0"])
def test_an_axis_is_a_dimension(axis):
    assert message(axis=axis) == f"axis is no dimension\n  got:      {axis!r}\n  expected: a whole number or None"


@pytest.mark.parametrize(("group_size", "axis"), [(32, None), (0, 0), (-1, 0), (1.5, 0), (True, 0)])
def test_groups_need_an_axis_and_values(group_size, axis):
    assert message(group_size=group_size, axis=axis) == (
        f"group_size needs an axis and at least one value per group\n  got:      group_size={group_size}, axis={axis}"
    )


@pytest.mark.parametrize(("symmetric", "axis"), [(False, None), (True, 0)])
def test_real_zero_points_belong_to_affine_channels(symmetric, axis):
    assert message(float_qparams=True, symmetric=symmetric, axis=axis) == (
        "a zero point that is a float belongs to affine quantization per channel\n"
        f"  got:      float_qparams=True, symmetric={symmetric}, axis={axis}\n"
        "  expected: symmetric=False, and an axis"
    )


@pytest.mark.parametrize("limits", [(-129, 127), (-128, 128), (5, 5), (6, 5)])
def test_limits_lie_inside_the_bits(limits):
    assert message(limits=limits) == (
        "quant_min and quant_max do not fit a signed integer of 8 bits\n"
        f"  got:      [{limits[0]}, {limits[1]}]\n"
        "  expected: quant_min < quant_max, both inside [-128, 127]"
    )


@pytest.mark.parametrize("limits", [(0.5, 3), (0,), (0, 1, 2), [0, 100], (False, True)])
def test_limits_are_two_whole_numbers(limits):
    assert message(signed=False, limits=limits) == (
        "quant_min and quant_max do not fit an unsigned integer of 8 bits\n"
        f"  got:      {limits!r}\n"
        "  expected: quant_min < quant_max, both inside [0, 255]"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "int8 affine per tensor"),
        ({"signed": False}, "uint8 affine per tensor"),
        ({"symmetric": True, "axis": 0}, "int8 symmetric per channel (axis 0)"),
        ({"bits": 4, "axis": -2, "group_size": 32}, "int4 affine per group of 32 (axis -2)"),
        ({"symmetric": True, "limits": (-127, 127)}, "int8 [-127, 127] symmetric per tensor"),
    ],
)
def test_a_scheme_in_words(fields, text):
    assert str(QScheme(**fields)) == text


def test_schemes_are_values():
    assert QScheme(bits=4) == replace(QScheme(), bits=4)
    assert len({QScheme(), QScheme(), QScheme(signed=False)}) == 2
    with pytest.raises(FrozenInstanceError):
        QScheme().bits = 4  # type: ignore[misc]
    with pytest.raises(SpecError, match=r"^bits is out of range"):
        replace(QScheme(), bits=17)


def test_qparams_of_every_granularity():
    qparams()
    qparams(QScheme(axis=1), (0.5, 0.25, 1.0), (0, 1, 2))
    qparams(QScheme(axis=0, group_size=2), ((0.5, 0.25), (1.0, 2.0)), ((0, 1), (2, 3)))
    qparams(QScheme(float_qparams=True, axis=0), (0.5, 0.25), (0.5, -3.25))
    qparams(scale=(float("nan"),))


def test_scale_and_zero_point_have_one_shape():
    with pytest.raises(SpecError) as caught:
        QParams(QScheme(axis=0), torch.ones(3), torch.zeros(2, dtype=torch.int32))
    assert str(caught.value) == "scale and zero_point have different shapes\n  got:      scale (3,), zero_point (2,)"


@pytest.mark.parametrize(
    ("scheme", "shape", "expected"),
    [
        (QScheme(), (), "(1,)"),
        (QScheme(), (2,), "(1,)"),
        (QScheme(), (1, 1), "(1,)"),
        (QScheme(axis=0), (), "(channels,)"),
        (QScheme(axis=0), (4, 2), "(channels,)"),
        (QScheme(axis=0, group_size=2), (4,), "(channels, groups)"),
    ],
)
def test_the_shape_is_that_of_the_scheme(scheme, shape, expected):
    with pytest.raises(SpecError) as caught:
        QParams(scheme, torch.ones(shape), torch.zeros(shape, dtype=torch.int32))
    assert str(caught.value) == (
        f"scale and zero_point have no shape of {scheme}\n  got:      {shape}\n  expected: {expected}"
    )


@pytest.mark.parametrize(
    ("scheme", "scale", "zero_point", "text"),
    [
        (
            QScheme(),
            torch.float64,
            torch.int32,
            "scale has the wrong dtype\n  got:      {0}\n  expected: torch.float32",
        ),
        (
            QScheme(),
            torch.float32,
            torch.int64,
            "zero_point has the wrong dtype\n  got:      {1}\n  expected: torch.int32",
        ),
        (
            QScheme(axis=0, float_qparams=True),
            torch.float32,
            torch.int32,
            "zero_point has the wrong dtype\n  got:      {1}\n  expected: torch.float32",
        ),
    ],
)
def test_the_dtypes_are_exact(scheme, scale, zero_point, text):
    with pytest.raises(SpecError) as caught:
        QParams(scheme, torch.ones(1, dtype=scale), torch.zeros(1, dtype=zero_point))
    assert str(caught.value) == text.format(scale, zero_point)


def test_the_same_grid_means_the_same_numbers():
    params = qparams()
    assert params.same_qparams(qparams())
    assert params.same_qparams(qparams(QScheme(limits=(-128, 127))))
    assert params.same_qparams(qparams(QScheme(symmetric=True)))  # how the grid was chosen does not matter


@pytest.mark.parametrize(
    "other",
    [
        qparams(scale=(0.25,)),
        qparams(zero_point=(4,)),
        qparams(QScheme(signed=False)),
        qparams(QScheme(bits=7)),
        qparams(QScheme(limits=(-127, 127))),
        qparams(QScheme(axis=0)),
        qparams(scale=(float("nan"),)),
    ],
    ids=["scale", "zero_point", "sign", "bits", "limits", "axis", "unknown"],
)
def test_a_different_grid(other):
    assert not qparams().same_qparams(other)
    assert not other.same_qparams(qparams())


def test_two_unknown_grids_are_not_the_same():
    assert not qparams(scale=(float("nan"),)).same_qparams(qparams(scale=(float("nan"),)))


def test_groups_of_different_sizes_are_different_grids():
    # 9 values make three groups of 3, and three of 4
    of = [qparams(QScheme(axis=0, group_size=n), ((1.0, 2.0, 4.0),), ((0, 0, 0),)) for n in (3, 4)]
    assert not of[0].same_qparams(of[1])


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_qparams_travel(travel):
    assert travel(qparams()).same_qparams(qparams())


@pytest.mark.parametrize(
    ("clamp", "function"),
    [(Clamp(0.0, None), F.relu), (Clamp(0.0, 6.0), F.relu6), (Clamp(-1.0, 1.0), F.hardtanh), (Clamp(), lambda x: x)],
)
def test_a_clamp_is_its_function(clamp, function):
    x = torch.linspace(-9, 9, 37)
    assert torch.equal(clamp(x), function(x))


def test_a_tensor_is_named_by_kind_too():
    assert TensorRef("conv") != TensorRef("conv", "parameter")
    assert str(TensorRef("layer1.0.conv1.weight", "parameter")) == "layer1.0.conv1.weight"
    assert pickle.loads(pickle.dumps(TensorRef("conv"))) == TensorRef("conv")


def test_policies_are_values():
    params = qparams()
    assert Fixed(params) == Fixed(params)
    assert Observed(dict) == Observed(dict) != Observed(list)
    assert SharedWith(TensorRef("a")) == SharedWith(TensorRef("a"), factor=1.0)
    assert SharedWith(TensorRef("a")) != SharedWith(TensorRef("a"), factor=2.0)
