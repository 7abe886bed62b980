"""What is offered: a link or a stranger's `recording.json` hides nothing, and what is no file is not waited for."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.share.test_upload import small
from tests.share.test_upload_watch import RECORDING, collected, ended, start, window
from traceanalyzer.errors import InputError
from traceanalyzer.share.offered import Watched, offered

SAMPLE = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"
STRANGERS = {
    "another tool's": json.dumps({"kind": "voice-memo", "windows": []}),
    "no object": "[1, 2]",
    "no JSON": "hello",
    "empty": "",
    "nested without end": '{"kind": "traceanalyzer-recording", "windows": ' + "[" * 100_000,
}


def watched(folder: Path) -> set[str]:
    looking = Watched([folder], settled_s=0.0)
    looking.scan()
    found = {offer.path.name for offer in looking.scan()}
    assert looking.unreadable == []
    return found


def names(folder: Path) -> set[str]:
    return {offer.path.name for offer in offered([folder])}


@pytest.mark.parametrize("target", ["/etc/passwd", "nowhere", "..", "manifest"])
def test_a_link_makes_no_recording(tmp_path: Path, target: str) -> None:
    """Not even one to a real manifest: whoever may make a link could name any file with it."""
    real = collected(tmp_path / "elsewhere", range(1))
    folder = tmp_path / "plain"
    folder.mkdir()
    shutil.copy(SAMPLE, folder)
    (folder / "recording.json").symlink_to(real / "recording.json" if target == "manifest" else target)
    assert names(folder) == {SAMPLE.name}
    assert watched(folder) == {SAMPLE.name}


@pytest.mark.parametrize("text", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_s_file_of_that_name_makes_no_recording(tmp_path: Path, text: str) -> None:
    shutil.copy(SAMPLE, tmp_path)
    (tmp_path / "recording.json").write_text(text)
    assert names(tmp_path) == {SAMPLE.name}
    assert SAMPLE.name in watched(tmp_path)


def test_a_pipe_or_a_folder_of_that_name_makes_no_recording(tmp_path: Path) -> None:
    for make in (os.mkfifo, os.mkdir):
        folder = tmp_path / make.__name__
        folder.mkdir()
        shutil.copy(SAMPLE, folder)
        make(folder / "recording.json")
        assert names(folder) == {SAMPLE.name}
        assert watched(folder) == {SAMPLE.name}


def test_a_trace_may_have_that_name(tmp_path: Path) -> None:
    small(tmp_path, "recording.json")
    assert names(tmp_path) == {"recording.json"}


def test_a_recording_is_one_still(tmp_path: Path) -> None:
    folder = collected(tmp_path, range(2))
    small(folder, "beside.json")
    for given in (folder, tmp_path):
        assert names(given) == {window(0), window(1)}
        assert watched(given) == {window(0), window(1)}
    assert {offer.labels["recording"] for offer in offered([folder])} == {RECORDING}


def test_a_manifest_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows must not go as plain traces, without what the manifest says of them."""
    folder = collected(tmp_path, range(2))
    real = os.open

    def refuse(path: str, flags: int, *more: int) -> int:
        if Path(path).name == "recording.json":
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        offered([folder])
    looking = Watched([folder], settled_s=0.0)
    assert (looking.scan(), looking.unreadable) == ([], [f"the folder {RECORDING} cannot be read: Permission denied"])


@pytest.mark.parametrize("more", [("--dry-run",), ("--to", "http://127.0.0.1:9")])
def test_a_pipe_is_not_waited_for(tmp_path: Path, more: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "trace.json")
    code, out, err = ended(start(tmp_path / "trace.json", *more, "--state", tmp_path / "state"))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "is no regular file" in err


def test_a_link_that_is_given_by_name_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(small(tmp_path, "run.json"))
    assert names(tmp_path) == {"run.json"}
    assert [offer.path.name for offer in offered([tmp_path / "link.json"])] == ["link.json"]
    with pytest.raises(InputError, match="is no regular file"):
        offered([Path("/dev/null")])
