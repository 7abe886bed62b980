"""One hash is stored or forgotten by one at a time: a deletion must not take the blob of an upload that follows it.

Storing puts the blob in place and then the row; forgetting removes the row and then the blobs. Were the two mixed, a
row could be left without its blob. What could be wrong: the lock is this process's; the folder is claimed by one
process, but servers that share an object store would need a lock in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from traceanalyzer.server.blobs import REPORTS, Blobs, key_of_report, key_of_trace
from traceanalyzer.server.services import Services

_LOCKS = tuple(threading.Lock() for _ in range(64))


@contextmanager
def exclusively(sha256: str) -> Iterator[None]:
    """Hold the hash: for storing it, for its reports, for forgetting it. Blocks; not for the event loop's thread."""
    with _LOCKS[int(sha256[:2], 16) % len(_LOCKS)]:
        yield


def forget(services: Services, sha256: str, even_pinned: bool = True) -> bool:
    """Delete a trace, its jobs and links, and everything stored under its hash; False: it was not known, or stays."""
    with exclusively(sha256):
        if not even_pinned and (row := services.traces.get(sha256)) is not None and row.pinned:
            return False
        known = services.traces.delete(sha256)
        remove_reports(services.blobs, sha256)
        services.blobs.delete(key_of_trace(sha256))
        return known


def remove_reports(blobs: Blobs, sha256: str) -> None:
    """Remove every rendering of a trace's report."""
    for kind in REPORTS:
        blobs.delete(key_of_report(sha256, kind))
