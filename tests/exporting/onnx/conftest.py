from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def here(translations_read_once: None) -> None:
    """All tests of this folder write files."""
