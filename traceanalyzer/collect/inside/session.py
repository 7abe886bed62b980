"""One profiler session of ours: start, stop, save. The only module of the recorder that touches torch.

It uses `torch.autograd.profiler.profile`, which `torch.profiler.profile` wraps: the wrapper imports Inductor, which
takes seconds, for the sake of one switch that does not matter here. What could be wrong: these two methods are not
public. They have been the same since torch 2.0; an error there is counted, and nothing is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
from typing import Any, Callable

_TAIL_BYTES = 4096


class Session:
    """A session over all threads where torch can (2.7), else over the thread that starts it.

    Args:
        record_shapes, with_stack: as in `torch.profiler.profile`.
    """

    def __init__(self, record_shapes: bool, with_stack: bool) -> None:
        """Nothing runs yet."""
        torch = sys.modules["torch"]
        self._torch: Any = torch
        self._thread = threading.get_ident()
        experimental, self.all_threads = _experimental(with_stack)
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._profile: Any = torch.autograd.profiler.profile(
            use_cpu=True, use_device="cuda" if cuda else None, record_shapes=record_shapes, with_stack=with_stack,
            use_kineto=True, **experimental,
        )  # fmt: skip
        self._facts = {"record_shapes": int(record_shapes), "with_stack": int(with_stack)}

    def start(self) -> None:
        """Start recording. No other session may run."""
        self._profile._prepare_trace()
        self._profile._start_trace()
        add = getattr(self._torch.autograd, "_add_metadata_json", None)
        if add is not None:
            for name, value in self._facts.items():
                if value:
                    add(name, json.dumps(value))

    def may_stop(self) -> bool:
        """Whether this thread may stop it: a session of one thread crashes when another one stops it."""
        return self.all_threads or threading.get_ident() == self._thread

    def quiet(self) -> bool:
        """Take no further operations, see `switch_off`. False: not with this torch, or this session of one thread."""
        take_no_more = switch_off() if self.all_threads else None
        if take_no_more is None:
            return False
        take_no_more()
        return True

    def stop(self) -> bool:
        """Stop recording. False when there is no result: another session has cancelled this one."""
        self._profile.__exit__(None, None, None)
        results = self._profile.kineto_results
        return results is not None and results.trace_start_ns() != 0

    def save(self, path: str) -> None:
        """Write the trace, complete or not at all.

        Raises:
            OSError: it could not be written whole. Kineto itself tells of no error.
        """
        partial = f"{path}.tmp"
        try:
            self._profile.kineto_results.save(partial)
            if not _complete(partial):
                raise OSError("the trace could not be written whole")
            os.replace(partial, path)
        finally:
            for left in (partial, f"{partial}.tmp"):  # Kineto writes beside its target and renames
                if os.path.exists(left):
                    os.remove(left)


def switch_off() -> Callable[[], None] | None:
    """What lets the session that records all threads, if any runs, take no further operations; None: not this torch.

    Those in flight still write their ends. Torch says a line about GPU tracks on stderr, which does not matter at a
    session's end.
    """
    torch = sys.modules["torch"]
    toggle = getattr(torch.autograd.profiler, "_toggle_collection_dynamic", None)
    return toggle and functools.partial(toggle, False, {torch._C._profiler.ProfilerActivity.CPU})


def suits_this_thread() -> bool:
    """Whether a session may start here: one that records its own thread alone crashes when that thread ends first."""
    return threading.current_thread() is threading.main_thread() or _experimental(True)[1]


def busy() -> bool:
    """Whether somebody records in this thread already, or captures a CUDA graph, which a start would break."""
    torch = sys.modules["torch"]
    if torch.autograd._profiler_enabled():
        return True
    monitor = sys.modules.get("torch.profiler._cupti_monitor")
    if monitor is not None and getattr(monitor, "get_monitor", lambda: None)() is not None:
        return True
    return capturing()


def capturing() -> bool:
    """Whether this thread captures a CUDA graph."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def _experimental(with_stack: bool) -> tuple[dict[str, Any], bool]:
    """The experimental configuration that this torch knows, and whether it records all threads."""
    config = getattr(sys.modules["torch"]._C._profiler, "_ExperimentalConfig", None)
    if config is None:
        return {}, False
    if not with_stack:
        with contextlib.suppress(TypeError):  # leaves out events for Python, which nobody reads here
            return {"experimental_config": config(profile_all_threads=True, trace_only=True)}, True
    with contextlib.suppress(TypeError):
        return {"experimental_config": config(profile_all_threads=True)}, True
    return {}, False


def _complete(path: str) -> bool:
    """Whether a trace has its end, which Kineto writes after all events."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            tail = stream.read()
    except FileNotFoundError:
        return False
    return b'"traceName"' in tail and tail.rstrip().endswith(b"}")
