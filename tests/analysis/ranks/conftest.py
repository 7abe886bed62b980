"""What all tests of ranks leave out: it takes a third of an analysis, and ranks do not ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traceanalyzer.analysis import hta


@pytest.fixture(scope="module", autouse=True)
def _without_hta() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hta, "ask", lambda _lines: (None, ()))
        yield
