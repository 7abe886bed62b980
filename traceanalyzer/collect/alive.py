"""Whether a process runs, and since when: what tells a number that is used again from the process that had it.

What could be wrong: where there is no /proc (macOS) a process that has ended and waits to be reaped counts as running,
and a number that is used again is not told apart.
"""

from __future__ import annotations

import os
from pathlib import Path


def born(pid: int) -> str | None:
    """The start time of a running process as /proc shows it, `""` where there is no /proc; None: not running.

    One that has ended and waits to be reaped does not run.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        pass
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""
