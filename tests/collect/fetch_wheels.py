"""Downloads the engines' wheels and unpacks their Python files.

    python tests/collect/fetch_wheels.py FOLDER [NAME[==VERSION] ...]

Nothing is installed, so no GPU and none of their packages are needed. What could be wrong with it: a wheel for another
platform would do as well, but an index may stop to carry this one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PINNED = ("vllm==0.33.0", "sglang==0.5.23")
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64", "any")


def fetch(folder: Path, wanted: tuple[str, ...]) -> None:
    """Unpack the wheels of `wanted` (requirement specifiers) into `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
        options = ["--only-binary", ":all:", "--python-version", "3.11", *platforms, "--dest", wheels]
        subprocess.run([*command, *options, *wanted], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if _is_wanted(name)])


def _is_wanted(name: str) -> bool:
    return name.endswith((".py", ".dist-info/METADATA"))


if __name__ == "__main__":
    fetch(Path(sys.argv[1]), tuple(sys.argv[2:]) or PINNED)
