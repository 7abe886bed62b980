"""The sidecar: looks for finished files again and again, and sends each once, whatever happens in between.

A server that is away is asked again after a pause that grows to `LONGEST_PAUSE_S`, without reading a trace for it. A
file that fails while the server is there waits by itself, and the others go on. What is refused for good is said once.
Each trouble is told when it begins, once an hour while it lasts, and when it is over. What could be wrong: the files
are sent one after the other, so that a spool that fills faster than the line carries is never emptied; the oldest file
is sent first, and what the collector deletes for its quota meanwhile is not sent at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.share.offered import Offer, Watched
from traceanalyzer.share.transfer import Denied, Refused, Unavailable
from traceanalyzer.share.upload import Busy, Gone, Say, Sent, Uploader, described

LOOK_S = 5.0
LONGEST_PAUSE_S = 120.0
LONGEST_DENIED_S = 300.0
LONGEST_ASKED_S = 3600.0
"""A server may ask for a longer pause than ours, up to this."""
LONGEST_FILE_S = 1800.0
AGAIN_S = 3600.0
_FIRST_PAUSE_S = 2.0
_FIRST_FILE_S = 15.0
_NAP_S = 0.2


@dataclass(slots=True)
class _Wait:
    """How often something failed in a row, and the monotonic second before which it is left alone."""

    tries: int = 0
    until: float = 0.0

    def longer(self, first_s: float, most_s: float, least_s: float = 0.0) -> None:
        """Double the pause, with jitter: many sidecars do not come back at once."""
        pause = min(most_s, first_s * 2.0 ** min(self.tries, 32)) * random.uniform(0.6, 1.0)  # noqa: S311
        self.tries += 1
        self.until = time.monotonic() + max(pause, least_s)


@dataclass(slots=True)
class _Trouble:
    """What was last said about the server, when, and since when it has been so (monotonic seconds)."""

    text: str = ""
    said: float = 0.0
    since: float = field(default_factory=time.monotonic)


class Sidecar:
    """Sends what appears in the folders that are watched."""

    def __init__(
        self,
        watched: Watched,
        uploader: Uploader,
        tell: Callable[[Sent], None],
        say: Say,
        look_s: float = LOOK_S,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        """Nothing is done yet.

        Args:
            watched: the folders.
            uploader: sends single files.
            tell: told of each trace that the server has.
            say: told in one line what goes wrong.
            look_s: seconds between two looks at the folders.
            first_pause_s: the pause after the first failure.
        """
        self._watched, self._uploader, self._tell, self._say = watched, uploader, tell, say
        self._look_s, self._first_pause_s = look_s, first_pause_s
        self._stopped = self._drains = False
        self._settled: set[Offer] = set()
        self._files: dict[Offer, _Wait] = {}
        self._server = _Wait()
        self._trouble: _Trouble | None = None
        self._unreadable: list[str] = []

    def run(self) -> None:
        """Go on until `stop` is called; a file that is being sent then is sent to its end."""
        while not self._stopped:
            self._rest(self._pause(self._round()))
        if self._drains:
            self._round()

    def stop(self, drain: bool) -> None:
        """End `run`; may be called from a signal handler.

        Args:
            drain: look once more, and send what is there as far as the server takes it.
        """
        self._drains = drain
        self._stopped = True

    def _round(self) -> bool:
        """Look at the folders once and send what waits. Returns whether something still waits."""
        was_stopped = self._stopped
        waiting = self._waiting()
        while waiting and self._stopped == was_stopped and time.monotonic() >= self._server.until:
            self._step(waiting.pop(0))
        return bool(waiting)

    def _rest(self, seconds: float) -> None:
        """Wait in small steps: a lock or an event must not be waited for where a signal handler sets it."""
        until = time.monotonic() + seconds
        while not self._stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_S))

    def _pause(self, has_work: bool) -> float:
        pause = self._server.until - time.monotonic()
        return min(max(0.0, pause), self._look_s) if has_work else self._look_s

    def _waiting(self) -> list[Offer]:
        """What is to be sent now: what failed least often first, then the oldest."""
        offers = self._watched.scan()
        for text in self._watched.unreadable:
            if text not in self._unreadable:
                self._say(text)
        self._unreadable = list(self._watched.unreadable)
        there = set(offers)
        self._settled &= there
        self._files = {offer: wait for offer, wait in self._files.items() if offer in there}
        now = time.monotonic()
        ready = [
            offer
            for offer in offers
            if offer not in self._settled and (offer not in self._files or self._files[offer].until <= now)
        ]
        return sorted(ready, key=lambda offer: self._files[offer].tries if offer in self._files else 0)

    def _step(self, offer: Offer) -> None:
        """Try one file, and note how it ended."""
        try:
            if self._uploader.is_settled(offer):
                self._settled.add(offer)
                return
            if self._server.tries:
                self._uploader.reach()
        except TraceAnalyzerError as error:
            self._stay_away(error)
            return
        try:
            sent = self._uploader.send(offer)
        except (Unavailable, Denied) as error:
            self._stay_away(error)
            self._put_off(offer)
        except (Busy, Gone):
            pass  # the next look says what has become of it
        except Refused as error:
            self._relax()
            self._say(described(offer, error))
            if error.is_final:
                self._settled.add(offer)
            else:
                self._put_off(offer)
        except (TraceAnalyzerError, OSError) as error:
            if self._put_off(offer) == 1:
                self._say(f"{described(offer, error)}; trying again later")
        else:
            self._relax()
            self._settled.add(offer)
            self._tell(sent)

    def _stay_away(self, error: TraceAnalyzerError) -> None:
        """Leave the server alone for a while, or the state where that is what fails."""
        asked = error.after_s or 0.0 if isinstance(error, Unavailable) else 0.0
        first, most = (10, LONGEST_DENIED_S) if isinstance(error, Denied) else (1, LONGEST_PAUSE_S)
        self._server.longer(first * self._first_pause_s, most, min(asked, LONGEST_ASKED_S))
        now = time.monotonic()
        if self._trouble is None:
            self._trouble = _Trouble()
        if str(error) != self._trouble.text or now - self._trouble.said >= AGAIN_S:
            self._trouble.text, self._trouble.said = str(error), now
            self._say(f"{error}; trying again until it works")

    def _put_off(self, offer: Offer) -> int:
        """Leave a file alone for a while; returns how often it failed."""
        wait = self._files.setdefault(offer, _Wait())
        wait.longer(min(_FIRST_FILE_S, 8 * self._first_pause_s), LONGEST_FILE_S)
        return wait.tries

    def _relax(self) -> None:
        """The server answered as it should."""
        self._server = _Wait()
        if self._trouble is not None:
            self._say(f"the server takes traces again, after {_duration(time.monotonic() - self._trouble.since)}")
            self._trouble = None


def _duration(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
