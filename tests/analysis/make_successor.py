"""Makes an environment in which `hta` is traceinsight, the successor of HolisticTraceAnalysis.

    python tests/analysis/make_successor.py FOLDER

Both own the package `hta`, so one environment cannot hold both. This one has traceinsight of its own and takes
everything else from the environment that runs this script, whose packages come later on its path. What could be wrong
with it: what traceinsight needs and HolisticTraceAnalysis does not would be missing here; pip is not asked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PINNED = "traceinsight==0.6.1"


def make(folder: Path) -> None:
    """Make the environment anew."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    subprocess.run([*command, "--target", str(own), PINNED], check=True)
    rest = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (own / "rest.pth").write_text("".join(f"{path}\n" for path in rest), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
