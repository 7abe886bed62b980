"""Fixtures of the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.report.browsing import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window, for one module: what a test does to it reaches no other module."""
    with chromium() as launched:
        yield launched
