"""Builds collector.pyz: the collector as one file that any Python from 3.8 on runs where nothing is installed.

    python scripts/collector.py out/collector.pyz

It holds traceanalyzer/collect as the package `collect`, `pynvml.py` of the installed nvidia-ml-py with its licence, and
this project's licence. The bytes depend on these files alone: names are sorted, times fixed, nothing is compressed, so
that the version of zlib does not show. What could be wrong: another nvidia-ml-py than pyproject.toml pins gives other
bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "traceanalyzer" / "collect"
SHEBANG = b"#!/usr/bin/env python3\n"
_TIME = (1980, 1, 1, 0, 0, 0)
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_MAIN = '''\
"""python collector.pyz [collect] [options] -- COMMAND..."""
import sys

if sys.version_info < (3, 8):
    sys.exit("traceanalyzer: collector.pyz needs Python 3.8 or newer")

from collect.supervisor import main

words = sys.argv[1:]
sys.exit(main(words[1:] if words[:1] == ["collect"] else words))
'''


def contents() -> dict[str, bytes]:
    """Every file of the archive by its name in it."""
    found = {f"collect/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in PACKAGE.rglob("*.py")}
    pynvml = _pynvml()
    return {
        **found,
        "__main__.py": _MAIN.encode(),
        "collect/VERSION": _version().encode() + b"\n",
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        "pynvml.py": pynvml,
        "pynvml.LICENSE": _licence(pynvml),
    }


def build(target: Path) -> None:
    """Write the archive, executable and atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".tmp")
    with partial.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, text in sorted(contents().items()):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o644 << 16
                entry.create_system = 3
                archive.writestr(entry, text)
    partial.chmod(0o755)
    partial.replace(target)


def _version() -> str:
    found = _VERSION.search((ROOT / "traceanalyzer" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("traceanalyzer/__init__.py names no version")
    return found.group(1)


def _pynvml() -> bytes:
    files = metadata.files("nvidia-ml-py") or []
    path = next((file.locate() for file in files if file.name == "pynvml.py"), None)
    if path is None:
        raise SystemExit("nvidia-ml-py is not installed; pyproject.toml names the release, in the extra dev")
    return Path(str(path)).read_bytes()


def _licence(source: bytes) -> bytes:
    """The comment that pynvml.py begins with: its wheel has no other licence file."""
    lines = []
    for line in source.decode().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.strip("#").strip())
    text = "\n".join(lines).strip()
    if "Copyright" not in text or "Redistribution" not in text:
        raise SystemExit("pynvml.py does not begin with its licence")
    return text.encode() + b"\n"


def main() -> None:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(description="Build collector.pyz.")
    parser.add_argument("target", type=Path)
    target = parser.parse_args().target
    build(target)
    sys.stderr.write(f"wrote {target}\n")


if __name__ == "__main__":
    main()
