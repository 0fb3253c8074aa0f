"""Which operator runs a layer, and why not another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fxquant.errors import KernelError
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.library import native_status
from fxquant.nn import kernel_selection
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.kernel_selection import kernel_of, native_refusal
from fxquant.nn.linear import QuantizedLinear
from fxquant.plan.spec import QParams, QScheme
from fxquant.settings import Settings

ZERO = torch.zeros(1, dtype=torch.int32)
LOADED = replace(native_status(), devices=("cpu",), reason="")


@pytest.mark.parametrize(
    ("conv", "reason"),
    [
        (nn.Conv2d(4, 4, 3, padding=1, dilation=2, padding_mode="circular"), ""),
        (nn.Conv1d(4, 4, 256), ""),
        (nn.Conv2d(4, 4, 3, groups=4), ""),
        (nn.Conv2d(4, 4, 3, groups=2), ""),
        (nn.Conv2d(4, 8, 3, groups=4), ""),
        (nn.Conv3d(4, 4, (7, 7, 7)), ""),
        (nn.Conv2d(1, 1, (256, 256)), ""),
        (nn.Conv1d(1, 1, 65537), "the int8 operators take windows of at most 65536 elements"),
    ],
)
def test_geometry_that_the_native_operator_takes(monkeypatch: pytest.MonkeyPatch, conv: nn.Conv2d, reason: str) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)
    assert native_refusal(ZERO, ConvGeometry.of(conv)) == reason


def test_a_zero_point_of_the_weight_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)

    assert native_refusal(ZERO) == ""
    assert native_refusal(torch.ones(1, dtype=torch.int32)) == "the int8 operators take no zero point of the weight"


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)

    assert native_refusal(ZERO.to("meta")) == "no native kernels for meta"


def test_what_runs_is_named() -> None:
    assert kernel_of("") == "native"
    assert kernel_of("not built") == "reference: not built"


def test_without_a_native_library_its_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: replace(LOADED, devices=(), reason="not built"))
    assert native_refusal(ZERO) == "not built"


X = QParams(QScheme(signed=False), torch.ones(1), ZERO)
WITH_ZERO_POINT = QParams(QScheme(), torch.ones(1), torch.ones(1, dtype=torch.int32))
REFUSAL = "the int8 operators take no zero point of the weight"
LEFT_TO_THE_REFERENCE = {
    "conv": (
        QuantizedConv(nn.Conv3d(2, 2, 1), x=X, weight=WITH_ZERO_POINT, y=X),
        torch.ones(1, 2, 1, 1, 1, dtype=torch.uint8),
    ),
    "linear": (
        QuantizedLinear(nn.Linear(2, 2), x=X, weight=WITH_ZERO_POINT, y=X),
        torch.ones(1, 2, dtype=torch.uint8),
    ),
}


@pytest.mark.parametrize("case", LEFT_TO_THE_REFERENCE)
def test_the_reference_stands_in_only_where_kernels_are_not_insisted_on(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    module, x = LEFT_TO_THE_REFERENCE[case]
    module.unit = "features.3"
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)

    monkeypatch.setattr(kernel_selection, "SETTINGS", Settings())
    module.invalidate()
    assert torch.equal(module(x), module.reference(x))

    monkeypatch.setattr(kernel_selection, "SETTINGS", Settings(kernels="native"))
    module.invalidate()
    with pytest.raises(KernelError) as error:
        module(x)
    assert str(error.value) == (
        "no kernel runs this layer, only the Python reference does\n"
        "  at:       features.3\n"
        "  got:      FXQUANT_KERNELS=native\n"
        f"  expected: a layer that a kernel takes; but {REFUSAL}\n"
        "  hint:     FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing"
    )
    assert module.reference(x).dtype == torch.uint8  # who asks for the reference gets it
