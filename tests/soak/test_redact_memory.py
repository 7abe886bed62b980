"""Redaction of a trace that is larger than its memory may be: bounded, and the same as of its parts."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak

MOST_BYTES = 330 << 20
"""Peak resident memory of the whole process, of which the imports take about 100 MiB."""
TEXT = 200 << 20
RUN = """
import json, sys, time
from pathlib import Path
from traceanalyzer.share.redact import redact_file
began = time.process_time()
done = redact_file(Path(sys.argv[1]), Path(sys.argv[2]))
seconds = time.process_time() - began
# Of this program alone: what getrusage says includes the process that started it.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([int(peak.split()[1]), seconds, dict(done.counts)]))
"""


def test_memory_is_bounded_where_every_text_differs(tmp_path: Path) -> None:
    written = events = 0
    with gzip.open(tmp_path / "in.json.gz", "wb", compresslevel=1) as out:
        out.write(b'{"schemaVersion": 1, "traceEvents": [\n')
        while written < TEXT:
            lines = []
            for number in range(events, events + 1000):
                body = {"External id": number, "Call stack": f"/home/user{number % 500}/x{number}.py(3): f{number}"}
                fields = {"cat": "cpu_op", "name": f"op::n{number}", "pid": 1, "tid": 1, "ts": number, "dur": 1}
                lines.append(json.dumps({"ph": "X", **fields, "args": body}))
                lines.append(json.dumps({**fields, "ph": "X", "cat": "user_annotation", "name": f"n {number}"}))
            text = ",\n".join(lines).encode()
            out.write((b",\n" if events else b"") + text)
            written, events = written + len(text), events + 1000
        out.write(b"]}")
    command = [sys.executable, "-c", RUN, str(tmp_path / "in.json.gz"), str(tmp_path / "out.json.gz")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    peak_kib, seconds, counts = json.loads(result.stdout)
    print(f"{written / 1e6:.0f} MB of text, {written / 1e6 / seconds:.1f} MB/s, {peak_kib / 1024:.0f} MiB")
    assert peak_kib * 1024 < MOST_BYTES
    assert counts["paths"] == events
    assert counts["annotations"] == events
