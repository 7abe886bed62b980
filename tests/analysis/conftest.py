"""What the tests of the analysis share: only those of HTA ask it; those of the CLI do on every real trace."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _hta_is_asked_in_its_own_tests(request: pytest.FixtureRequest) -> None:
    if not request.module.__name__.rpartition(".")[2].startswith("test_hta"):
        request.getfixturevalue("without_hta")
