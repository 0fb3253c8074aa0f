"""From torch's words to QScheme."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import SpecError
from fxquant.observers.scheme import make_scheme, torch_dtype, torch_qscheme
from fxquant.plan.spec import QScheme


@pytest.mark.parametrize(
    ("words", "scheme"),
    [
        ({}, QScheme(signed=False)),
        ({"dtype": torch.quint8}, QScheme(signed=False)),
        ({"dtype": torch.uint8}, QScheme(signed=False)),
        ({"dtype": torch.qint8}, QScheme()),
        ({"dtype": torch.int8}, QScheme()),
        ({"dtype": torch.quint4x2}, QScheme(bits=4, signed=False)),
        ({"dtype": torch.int4}, QScheme(bits=4)),
        ({"dtype": torch.uint7}, QScheme(bits=7, signed=False)),
        ({"dtype": torch.int16}, QScheme(bits=16)),
        ({"dtype": torch.uint16}, QScheme(bits=16, signed=False)),
        ({"dtype": torch.qint32, "quant_min": -1000, "quant_max": 1000}, QScheme(bits=16, limits=(-1000, 1000))),
        ({"dtype": torch.qint32, "quant_min": 0, "quant_max": 65535}, QScheme(bits=16, signed=False)),
        ({"dtype": torch.int8, "bits": 4}, QScheme(bits=4)),
        ({"bits": 12}, QScheme(bits=12, signed=False)),
        ({"dtype": torch.qint8, "quant_min": -127}, QScheme(limits=(-127, 127))),
        ({"dtype": torch.qint8, "quant_min": -128, "quant_max": 127}, QScheme()),
        ({"dtype": torch.qint8, "reduce_range": True}, QScheme(limits=(-64, 63))),
        ({"dtype": torch.quint8, "reduce_range": True}, QScheme(signed=False, limits=(0, 127))),
        ({"bits": 4, "reduce_range": True}, QScheme(bits=4, signed=False, limits=(0, 7))),
        ({"qscheme": torch.per_tensor_symmetric}, QScheme(signed=False, symmetric=True)),
        ({"qscheme": "torch.per_tensor_affine"}, QScheme(signed=False)),
        ({"qscheme": torch.per_channel_affine, "ch_axis": -1}, QScheme(signed=False, axis=-1)),
        ({"qscheme": "per_channel_symmetric", "ch_axis": 1}, QScheme(signed=False, symmetric=True, axis=1)),
        (
            {"qscheme": torch.per_channel_affine_float_qparams, "ch_axis": 0},
            QScheme(signed=False, axis=0, float_qparams=True),
        ),
        ({"ch_axis": 0, "group_size": 32}, QScheme(signed=False, axis=0, group_size=32)),
        ({"scheme": QScheme(bits=3)}, QScheme(bits=3)),
        ({"scheme": QScheme(axis=2), "ch_axis": 0}, QScheme(axis=2)),
    ],
    ids=str,
)
def test_words(words, scheme):
    assert make_scheme(**words) == scheme


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"bits": 1}, "bits is out of range\n  got:      1\n  expected: a whole number from 2 to 16"),
        ({"bits": 17}, "bits is out of range\n  got:      17\n  expected: a whole number from 2 to 16"),
        (
            {"dtype": torch.qint8, "quant_max": 255},
            "quant_min and quant_max do not fit a signed integer of 8 bits\n"
            "  got:      [-128, 255]\n"
            "  expected: quant_min < quant_max, both inside [-128, 127]",
        ),
        (
            {"dtype": torch.qint8, "qscheme": torch.per_tensor_symmetric, "quant_min": 1},
            "limits that are signed and symmetric must hold 0\n  got:      [1, 127]\n"
            "  expected: quant_min <= 0 <= quant_max",
        ),
        (
            {"scheme": QScheme(symmetric=True, limits=(-128, -1))},
            "limits that are signed and symmetric must hold 0\n  got:      [-128, -1]\n"
            "  expected: quant_min <= 0 <= quant_max",
        ),
        (
            {"scheme": QScheme(), "bits": 8},
            "scheme says all there is to say of qparams\n"
            "  expected: either scheme, or dtype, qscheme, reduce_range, quant_min, quant_max, bits and group_size",
        ),
        (
            {"qscheme": torch.per_channel_affine},
            "this observer has one scale for the whole tensor\n"
            "  got:      torch.per_channel_affine\n"
            "  expected: per tensor\n"
            "  hint:     the observers that have PerChannel in their name take it",
        ),
        (
            {"qscheme": "per_tensor_affine", "ch_axis": 0},
            "this observer has a scale per channel\n"
            "  got:      per_tensor_affine\n"
            "  expected: per channel\n"
            "  hint:     the observer of the same name without PerChannel takes it",
        ),
        (
            {"qscheme": "per_tensor_symetric"},
            "not a quantization scheme\n"
            "  got:      'per_tensor_symetric'\n"
            "  expected: per_tensor_affine, per_tensor_symmetric, per_channel_affine, per_channel_symmetric, "
            "per_channel_affine_float_qparams\n"
            "  hint:     did you mean 'per_tensor_symmetric'?",
        ),
        (
            {"qscheme": QScheme()},
            "a QScheme goes into the argument scheme, not qscheme\n  got:      int8 affine per tensor",
        ),
    ],
    ids=str,
)
def test_bad_words(words, message):
    with pytest.raises(SpecError) as caught:
        make_scheme(**words)
    assert str(caught.value) == message


def test_a_float_dtype_is_refused():
    with pytest.raises(SpecError, match=r"^not an integer dtype to quantize to\n  got:      torch.float16\n"):
        make_scheme(dtype=torch.float16)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("uint8", "\n  hint:     did you mean torch.uint8?"),
        ("qint", "\n  hint:     did you mean torch.qint8?"),
        ("double", ""),
    ],
)
def test_the_name_of_a_dtype_is_refused_with_the_dtype(name, hint):
    with pytest.raises(SpecError) as caught:
        make_scheme(dtype=name)
    first, got, expected, *rest = str(caught.value).splitlines()
    assert (first, got) == ("not an integer dtype to quantize to", f"  got:      {name!r}")
    assert expected.startswith("  expected: torch.quint8, torch.qint8, ")
    assert "\n".join(["", *rest] if rest else []) == hint


def test_torchs_words_for_a_scheme():
    assert torch_dtype(QScheme()) == torch.qint8
    assert torch_dtype(QScheme(signed=False)) == torch.quint8
    assert torch_dtype(QScheme(bits=16)) == torch.int16
    for qscheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        assert torch_qscheme(make_scheme(qscheme=qscheme)) == qscheme
    for qscheme in (torch.per_channel_affine, torch.per_channel_symmetric, torch.per_channel_affine_float_qparams):
        assert torch_qscheme(make_scheme(qscheme=qscheme, ch_axis=0)) == qscheme
