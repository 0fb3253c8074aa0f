"""What tests of files share: the functions that torch.onnx translates operators by, read once."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from torch.onnx._internal import _lazy_import


@pytest.fixture(scope="session", autouse=True)
def translations_read_once() -> Iterator[None]:
    """For each file torch.onnx asks onnxscript for its functions, which compiles the source of all 500 anew: half of
    the time that a small file takes. The list is a constant.
    """
    apis = _lazy_import.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apis, "get_torchlib_ops", functools.cache(apis.get_torchlib_ops))
        yield
