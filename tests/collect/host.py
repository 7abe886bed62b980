"""Runs each script of the recorder's tests in a fork of its own, in which torch is imported already.

What the script sees is a process with one thread, in which nothing but imports has happened. It runs as `__main__`; an
error or a signal ends it as any other, its last line too, but that memory is not freed one by one. One line of JSON on
standard input is one script; the answers are its process' number and then its status, as `waitpid` gives it.
`hosted.py` is the other end.
"""

from __future__ import annotations

import atexit
import json
import os
import posix
import sys
import threading
from pathlib import Path

import torch._inductor.config  # noqa: F401 - what torch.profiler imports at its first start


def serve():
    """The script to run, in the process that is to run it; None where there are no more."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lack the other threads"
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            return job
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)
    return None


def become(job):
    """Take the place of a process that was started with this environment, folder and output."""
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for name in ("out", "errors")]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.stdin = open(0)  # noqa: SIM115 - the interpreter's own
    sys.argv[:] = [job["script"]]
    sys.path[0] = job["folder"]
    sys.path[1:1] = job["environment"]["PYTHONPATH"].split(os.pathsep)


if __name__ == "__main__":
    _job = serve()
    if _job is not None:
        become(_job)
        __file__ = _job["script"]
        _code = compile(Path(__file__).read_text(encoding="utf-8"), __file__, "exec")
        del serve, become, _job, Path
        exec(_code)
        # What the interpreter does at its end, but for freeing all of torch, which takes a second.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        posix._exit(0)
