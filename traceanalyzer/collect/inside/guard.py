"""The one place where errors of ours end inside the user's process: counted, told in procs/PID.json, never raised.

What could be wrong: an error that comes with every step costs its handling each time. After `GIVE_UP` failures at one
place that place is switched off for the rest of the process.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable

GIVE_UP = 20
MOST_PLACES = 32
failures: dict[str, list] = {}  # type: ignore[type-arg]
"""Place -> [count, last error]. The error is its type and the line of ours it came from: a message may hold data."""


class guarded(contextlib.ContextDecorator):
    """Runs a block or function of ours so that nothing it raises reaches the host.

    Args:
        place: a short name, shown in the recording.

    `KeyboardInterrupt` and `SystemExit` pass: they belong to the host.
    """

    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        """Name the place."""
        self.place = place

    def __enter__(self) -> guarded:
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Count and swallow an error of ours."""
        if error is None or not isinstance(error, Exception):
            return False
        note(self.place, error)
        return True


def attempt(place: str, otherwise: Any, call: Callable[..., Any], *args: Any) -> Any:
    """What `call` gives, or `otherwise` where it fails or has failed too often: `guarded` for what every step runs."""
    if failures and given_up(place):
        return otherwise
    try:
        return call(*args)
    except Exception as error:
        note(place, error)
        return otherwise


def note(place: str, error: Exception) -> None:
    """Count a failure at `place`."""
    found = failures.get(place)
    first = found is None
    if found is None:
        if len(failures) >= MOST_PLACES:
            return
        found = failures[place] = [0, ""]
    found[0] += 1
    found[1] = type(error).__name__ + _line(error)
    runtime = sys.modules.get(__package__ + ".runtime")
    if runtime is not None:
        with contextlib.suppress(Exception):  # whoever calls this stands in the host's own code
            runtime.process.count_failure(first)


def given_up(place: str) -> bool:
    """Whether a place failed so often that it is switched off."""
    found = failures.get(place)
    return found is not None and found[0] >= GIVE_UP


def total() -> int:
    """Failures at all places."""
    return sum(count for count, _ in list(failures.values()))


def _line(error: Exception) -> str:
    where = error.__traceback__
    last = ""
    while where is not None:
        name = where.tb_frame.f_code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
        last = f" at {name}:{where.tb_lineno}"
        where = where.tb_next
    return last
