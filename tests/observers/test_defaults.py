"""What is used where the user names nothing."""

from __future__ import annotations

import pytest

from fxquant.errors import UnknownNameError
from fxquant.observers import DEFAULT_QCONFIGS, get_default_qconfig, get_default_qconfig_mapping
from fxquant.spec import QScheme


def test_default_grids():
    for backend in DEFAULT_QCONFIGS:
        qconfig = get_default_qconfig(backend)
        assert qconfig.activation_scheme == QScheme(bits=8, signed=False)
        assert qconfig.weight_scheme == QScheme(bits=8, signed=True, symmetric=True, axis=0)
        assert get_default_qconfig_mapping(backend).global_qconfig is qconfig


def test_a_mapping_is_made_anew_each_time():
    get_default_qconfig_mapping().set_module_name("head", None)
    assert get_default_qconfig_mapping().module_name_qconfigs == {}


def test_unknown_backend():
    with pytest.raises(UnknownNameError) as caught:
        get_default_qconfig_mapping("onedn")
    assert str(caught.value) == (
        "unknown default configuration\n"
        "  got:      'onedn'\n"
        "  expected: cpu, reference, x86, onednn, fbgemm, qnnpack\n"
        "  hint:     did you mean 'onednn'?"
    )
