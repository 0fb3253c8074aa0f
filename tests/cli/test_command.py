from __future__ import annotations

import pytest

from fxquant.cli.command import require
from fxquant.errors import SampleError


def test_a_missing_extra_is_named_with_its_cure() -> None:
    require("torch")
    with pytest.raises(SampleError) as refusal:
        require("torch", "no_such_package_here")
    assert str(refusal.value) == (
        "this needs packages that fxquant itself does without\n"
        "  got:      no no_such_package_here\n"
        "  hint:     pip install 'fxquant[examples]'"
    )
