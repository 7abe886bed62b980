"""Fixtures that several test packages use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Every core has its own tests: a pool of threads in each process would only spin for its turn. Read when torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", ROOT.parent / "shared"))


def require(condition: bool, reason: str) -> None:
    """Skip with a reason on a laptop; fail in CI, where nothing may be skipped."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real and damaged traces that the project does not ship."""
    folder = SHARED / "traces"
    require(folder.is_dir(), "the shared trace collection is not here")
    return folder


@pytest.fixture(scope="session")
def expected(traces: Path) -> dict[str, dict[str, Any]]:
    """What each shared trace holds, by file name."""
    data = json.loads((traces / "expected.json").read_text())
    return {name: entry for name, entry in data.items() if not name.startswith("_")}


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The folder of independent reference values."""
    folder = SHARED / "oracle"
    require(folder.is_dir(), "the shared reference values are not here")
    return folder


@pytest.fixture(scope="module")
def without_hta() -> Iterator[None]:
    """Leaves another tool's figures out: a third to a half of an analysis, for tests that do not look at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traceanalyzer.analysis.hta.ask", lambda _lines: (None, ()))
        yield


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test fails the run: there everything is installed, so a skip is a hole."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
