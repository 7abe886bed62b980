"""Stripped simulated runs of every mode against their truth: the limits that docs/accuracy.md promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.accuracy import SCENARIOS, measure

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SCENARIOS)
def test_phases_and_work_are_right(name: str, tmp_path: Path) -> None:
    found = measure(name, tmp_path)
    assert found.phases_right >= 0.99
    assert found.phases_right_alone >= 0.99
    assert found.flops_error <= 0.05
    assert found.bytes_error <= 0.05


def test_the_page_has_a_line_for_every_run() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    rows = [line.removeprefix("| ").split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    assert rows[2:] == list(SCENARIOS)  # after the head and its rule
