"""Files are written whole or not at all, and never over somebody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traceanalyzer.commands.output import Target, target
from traceanalyzer.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def mine(text: str) -> bool:
    return text.startswith("mine")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def place(value: str, *, inputs: tuple[str, ...] = (), force: bool = False) -> Target:
    return target("-o", value, inputs, mine, force)


def test_a_new_file_is_written() -> None:
    place("new.html").write("täxt")
    assert Path("new.html").read_bytes() == "täxt".encode()
    assert files() == ["new.html"]


def test_an_earlier_result_is_replaced_and_other_files_are_not() -> None:
    Path("ours").write_text("mine 1")
    Path("theirs").write_text("a diary")
    place("ours").write("mine 2")
    assert Path("ours").read_text() == "mine 2"
    with pytest.raises(InputError, match=r"theirs exists.*--force"):
        place("theirs")
    place("theirs", force=True).write("mine 3")
    assert Path("theirs").read_text() == "mine 3"


def test_an_input_is_never_written_to() -> None:
    Path("trace.json").write_text("mine, by chance")
    Path("link.json").symlink_to("trace.json")
    for name in ("trace.json", "./trace.json", "link.json"):
        with pytest.raises(InputError, match="is the input"):
            place(name, inputs=("-", "missing", "trace.json"), force=True)


@pytest.mark.parametrize("name", [".", "no/such/folder/x.html", "--json", "", "\0", "x" * 5000, "file/x"])
def test_places_that_cannot_be_written_to_are_refused_before_any_work(name: str) -> None:
    Path("file").write_text("mine")
    with pytest.raises(InputError, match="-o"):
        place(name)
    assert files() == ["file"]


def test_a_full_disk_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("page").write_text("mine, old")

    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="page: no space left"):
        place("page").write("mine, new")
    assert Path("page").read_text() == "mine, old"
    assert files() == ["page"]


def test_a_device_is_written_to_directly() -> None:
    place("/dev/null").write("gone")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(InputError, match="no space left"):
        place("/dev/full").write("no room")


def test_a_link_stays_a_link() -> None:
    Path("real").write_text("mine")
    Path("link").symlink_to("real")
    place("link").write("mine too")
    assert Path("link").is_symlink()
    assert Path("real").read_text() == "mine too"


@pytest.mark.parametrize(
    ("redirect", "code", "message"),
    [
        (">/dev/full", 2, "traceanalyzer: cannot write to standard output: no space left"),
        (">&-", 2, "traceanalyzer: standard output is closed"),
        ("2>&- >/dev/full", 2, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_standard_output_that_fails(redirect: str, code: int, message: str) -> None:
    # More than a pipe holds, so that a reader that has gone is noticed.
    script = (
        "import sys; from traceanalyzer.__main__ import main; from traceanalyzer.commands.app import app; "
        "from traceanalyzer.commands.output import write_stdout; "
        "app.command(name='long')(lambda: write_stdout('x' * 300000)); sys.exit(main(['long']))"
    )
    command = f'cd {ROOT}; {sys.executable} -c "{script}" {redirect}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (code, message)
