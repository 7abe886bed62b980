"""Every shared trace through the whole command: its exit code, one line where it fails, nothing secret anywhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer.__main__ import main

SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "traces"
# Things shaped like a credential: access tokens by their prefixes, JSON web tokens, private keys.
TOKEN = re.compile(
    r"\b(?:gh[pousr]_|github_pat_|hf_|sk-|xox[abpr]-|glpat-|AKIA|AIza|eyJ[A-Za-z0-9_-]{8,}\.)[A-Za-z0-9_.-]{8,}"
    r"|BEGIN [A-Z ]*PRIVATE KEY"
)


def names() -> list[str]:
    """The traces to try, at collection time; where there are none, one test that says why it is skipped."""
    if not (SHARED / "expected.json").is_file():
        return ["expected.json"]
    return sorted(name for name in json.loads((SHARED / "expected.json").read_text()) if not name.startswith("_"))


@pytest.mark.parametrize("name", names())
def test_trace(
    name: str,
    traces: Path,
    expected: dict[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, document, ticket = (tmp_path / f"x.{kind}" for kind in ("html", "json", "md"))
    code = main(["report", str(traces / name), "-o", str(page), "--json", str(document), "--markdown", str(ticket)])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert code == expected[name]["exit"], shown.err
    if code:
        assert re.fullmatch(r"traceanalyzer: [^\n]+\n", shown.err)
        assert name in shown.err
        assert not list(tmp_path.iterdir())
        return
    assert shown.err == f"wrote {page}\n"
    assert page.stat().st_size < 2_000_000
    main(["report", str(page), "--quiet", "--json", "-"])
    assert capsys.readouterr().out == document.read_text()
    main(["report", str(page)])
    outputs = [capsys.readouterr().out, *(path.read_text(encoding="utf-8") for path in (page, document, ticket))]
    for text in outputs:
        assert not TOKEN.search(text)
        assert "/root/" not in text
        assert "Traceback" not in text


def test_the_folder_of_all_traces_is_no_run(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces)]) == 2
    assert re.fullmatch(r"traceanalyzer: [^\n]+\n", capsys.readouterr().err)
