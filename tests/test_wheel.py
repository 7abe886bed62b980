"""The wheel holds everything: installed alone, it makes the same bytes as the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_templates_data_and_types_and_needs_no_torch(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    for path in (*(ROOT / "templates").rglob("*"), *(ROOT / "traceanalyzer" / "catalog").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            packaged = path.relative_to(ROOT).as_posix().replace("templates/", "traceanalyzer/_templates/", 1)
            assert packaged in names
    assert "traceanalyzer/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "samples", "docs")) for name in names)
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert any("holistictraceanalysis" in line.lower() for line in required)
    assert not any("torch" in line.lower() or "transformers" in line.lower() for line in required)


def test_a_page_from_the_wheel_has_the_bytes_of_a_page_from_the_tree(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(site), str(wheel))
    run("-m", "pip", *install, cwd=tmp_path)
    where = run("-c", "import traceanalyzer; print(traceanalyzer.__file__)", cwd=tmp_path, PYTHONPATH=str(site))
    assert Path(where.strip()).is_relative_to(site)
    pages = []
    for name, source in (("wheel.html", site), ("tree.html", ROOT)):
        run("-m", "traceanalyzer", "report", str(SAMPLE), "-q", "-o", name, cwd=tmp_path, PYTHONPATH=str(source))
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert (site / "bin" / "traceanalyzer").is_file()
