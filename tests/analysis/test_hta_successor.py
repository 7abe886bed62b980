"""The adapter's tests once more with traceinsight for HolisticTraceAnalysis, in the environment of `make test`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.conftest import require

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("TRACEANALYZER_SUCCESSOR", ROOT / ".venv" / "traceinsight")) / "bin" / "python"
FILES = [str(Path(__file__).with_name(name)) for name in ("test_hta.py", "test_hta_loader.py")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    for name in [name for name in environment if name.startswith(("PYTEST_", "COV_"))]:
        del environment[name]
    return subprocess.run([PYTHON, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600)


def test_the_adapter_with_the_successor() -> None:
    require(PYTHON.exists(), "the environment with traceinsight was not made: `make test`")
    which = run("-c", "import hta; from traceanalyzer.analysis import hta as ours; print(hta.__file__, ours._source())")
    place, _, source = which.stdout.strip().partition(" ")
    assert Path(place).is_relative_to(PYTHON.parent.parent), which.stderr
    assert source == "traceinsight 0.6.1"
    done = run("-m", "pytest", "-p", "no:cacheprovider", "-k", "not resnet50 and not cuda-graphs", *FILES)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout or "100%" in done.stdout
