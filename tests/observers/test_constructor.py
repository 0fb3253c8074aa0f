"""What ``with_args`` gives."""

from __future__ import annotations

import pickle
import re

import pytest

from fxquant import observers
from fxquant.errors import SpecError
from fxquant.observers import MinMaxObserver
from fxquant.plan.spec import QScheme


def test_with_args_compares_pickles_and_prints():
    constructor = MinMaxObserver.with_args(bits=4).with_args(eps=0.5)
    assert constructor == MinMaxObserver.with_args(bits=4, eps=0.5)
    assert constructor != MinMaxObserver.with_args(bits=4)
    assert hash(constructor) == hash(MinMaxObserver.with_args(eps=0.5, bits=4))
    assert pickle.loads(pickle.dumps(constructor)) == constructor
    assert repr(constructor) == "MinMaxObserver.with_args(bits=4, eps=0.5)"
    assert constructor().scheme == QScheme(bits=4, signed=False)
    assert constructor() is not constructor()
    with pytest.raises(SpecError) as caught:
        MinMaxObserver.with_args(quant_mni=0)
    assert str(caught.value) == (
        "MinMaxObserver takes no argument 'quant_mni'\n"
        "  expected: dtype, qscheme, reduce_range, quant_min, quant_max, factory_kwargs, eps, is_dynamic, bits, "
        "scheme\n"
        "  hint:     did you mean 'quant_min'?"
    )


@pytest.mark.parametrize("name", [name for name in observers.__all__ if re.fullmatch(r"[A-Z]\w+Observer", name)])
def test_every_observer_names_a_wrong_keyword(name):
    with pytest.raises(SpecError, match=f"^{name} takes no argument 'typo'\n  expected: "):
        getattr(observers, name).with_args(typo=0)
