"""Fixtures for tests of any part."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import importlib.util
import logging
import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fxquant.kernels.library import available_isas, native_status


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and modules live to the end: the collector finds nothing among them, and would go through all again and
    again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests that are marked ``one_in``, leave all but about one case of so many to ``make slow``. The checksums of
    names decide, so that of a product of parameters hardly a value is left out.
    """
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is not None and zlib.crc32(item.name.encode()) % marker.args[0]:
            item.add_marker(pytest.mark.slow)


def pytest_sessionstart() -> None:
    """Without its library, ``make sanitize`` would test the reference and find nothing."""
    if os.environ.get("FXQUANT_SANITIZE") == "1" and not available_isas():
        pytest.exit(f"no sanitized kernels: {native_status().reason}", returncode=1)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """``torch.set_default_dtype``, as programs call it that compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Logged(logging.Handler):
    """Keeps what is logged while a test runs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()  # raises where the arguments do not fit
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @contextlib.contextmanager
    def at_level(self, level: int, logger: str | None = None) -> Iterator[None]:
        """Let ``logger`` (the root one by default) take records from ``level`` on."""
        one = logging.getLogger(logger)
        before = one.level
        one.setLevel(level)
        try:
            yield
        finally:
            one.setLevel(before)


@pytest.fixture
def logged() -> Iterator[Logged]:
    """In place of pytest's ``caplog``, whose handlers around every test take two milliseconds each time."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def fresh() -> Iterator[Any]:
    """Runs programs in processes that have torch, and nothing of ours; see ``fresh.py``."""
    # By its path: make sanitize has this folder on no path.
    spec: Any = importlib.util.spec_from_file_location("fresh", Path(__file__).parent / "fresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Fresh()
    yield made
    made.close()


@pytest.fixture(scope="session")
def translations_read_once() -> Iterator[None]:
    """For each file torch.onnx makes a table of the functions that operators are translated by, and compiles the source
    of all 500 anew: half of the time that a small file takes. The table is a constant, to which each file adds its own.
    It also asks, 60 times, for the names of all operators, so that each is an attribute of ``torch.ops``.
    """
    registry: Any = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    made = functools.cache(registry.from_torchlib)

    def table(*opset: int, **named: int) -> Any:
        own = copy.copy(made(*opset, **named))
        own.functions = {name: list(functions) for name, functions in own.functions.items()}
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", staticmethod(table))
        operators: Any = importlib.import_module("torch._export.utils")
        operators._materialize_cpp_cia_ops()
        patch.setattr(operators, "_materialize_cpp_cia_ops", lambda: None)
        yield
