"""What tests of the collector share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for the runtime folder, and that holds nothing else."""
    folder = Path("/tmp") / f"tt{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)
