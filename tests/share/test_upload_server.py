"""The client and the server together, each as a process of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.server.serving import Serving, make_token, sha256, trace_gz, trace_text, until
from tests.server.serving import serving as real_server
from tests.share.test_upload_watch import collected, ended, outgoing, start


def sent(tmp_path: Path, url: str, *words: object, token: str = "") -> tuple[int, str, str]:
    environment = {"TRACEANALYZER_TOKEN": token} if token else {}
    return ended(start(*words, "--to", url, "--state", tmp_path / "state" / "sent.sqlite3", **environment), 90)


def stored(server: Serving) -> list[dict[str, object]]:
    traces: list[dict[str, object]] = server.ask("GET", "/api/v1/traces?size=500").json()["traces"]
    return traces


def test_what_the_server_takes_and_what_not(tmp_path: Path) -> None:
    folder, trace = tmp_path / "server", tmp_path / "a.json.gz"
    trace.write_bytes(trace_gz(1))
    token, reader = make_token(folder, "upload"), make_token(folder, "read")
    with real_server(folder, "--max-body-mb", "1", token=reader) as server:
        base = server.url.rstrip("/")
        code, out, err = sent(tmp_path, server.url, trace)
        assert (code, out) == (2, "")
        assert "wants a token" in err
        code, out, err = sent(tmp_path, server.url, trace, token=reader)
        assert (code, out) == (2, "")
        assert "scope" in err
        assert stored(server) == []
        code, out, err = sent(tmp_path, server.url, trace, "--label", "revision=abc", token=token)
        assert code == 0, err
        (row,) = stored(server)
        digest = str(row["sha256"])
        assert row["revision"] == "abc"
        assert out == f"{base}/t/{digest}\n"
        # And again without the memory of it: the server is asked, and has it.
        (tmp_path / "state" / "sent.sqlite3").unlink()
        code, out, err = sent(tmp_path, server.url, trace, token=token)
        assert (code, out) == (0, f"{base}/t/{digest}\n")
        assert "already" in err
        code, out, err = sent(tmp_path, server.url, large(tmp_path), "--redact", "none", token=token)
        assert (code, out) == (2, "")
        assert "too large for the server (413" in err
        assert "trying again" not in err
        assert len(stored(server)) == 1
        assert outgoing(tmp_path / "state" / "sent.sqlite3") == []
        until(lambda: server.state(digest) in ("analysed", "failed"))
        assert server.state(digest) == "analysed"
        assert sha256(server.ask("GET", f"/api/v1/traces/{digest}").content) == digest
        assert token not in server.log()


def large(folder: Path) -> Path:
    """A trace of more than 20 MB, compressed."""
    noise = random.Random(5)
    trace = json.loads(trace_text(2, 10))
    trace["traceEvents"][0]["args"]["x"] = [f"{noise.getrandbits(16_000):x}" for _ in range(11_000)]
    (folder / "large.json").write_text(json.dumps(trace))
    return folder / "large.json"


def test_a_killed_server_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    collected(spool, range(12))
    state = tmp_path / "state" / "sent.sqlite3"
    with real_server(tmp_path / "server") as server:
        port, told = server.port, []
        process = start("--watch", spool, "--to", f"http://127.0.0.1:{port}", "--state", state, "--redact", "none")
        assert process.stdout is not None
        try:
            told += [process.stdout.readline() for _ in range(3)]
            server.kill()
            with real_server(tmp_path / "server", "--port", str(port)) as again:
                told += [process.stdout.readline() for _ in range(9)]
                process.send_signal(signal.SIGTERM)
                code, out, err = ended(process)
                assert (code, out) == (0, ""), err
                found = {row["sha256"] for row in stored(again)}
        finally:
            process.kill()
            process.wait(20)
    assert len(found) == 12
    assert {line.strip().rsplit("/", 1)[1] for line in told} == found


def test_a_full_disk_here_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); "
        "from traceanalyzer.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    trace = tmp_path / "a.json"
    trace.write_bytes(trace_text(1, 5000))
    state = tmp_path / "state" / "sent.sqlite3"
    words = ["upload", str(trace), "--to", "http://127.0.0.1:1", "--state", str(state)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=90, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("traceanalyzer: ")
    assert done.stderr.count("\n") == 1
    assert outgoing(state) == []
