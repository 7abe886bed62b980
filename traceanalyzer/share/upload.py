"""Sends traces: each is redacted into a private copy, which is what is hashed, named and sent; the copy then goes.

Nothing is sent twice: the state says what was sent from here, and the server is asked before a body travels. What could
be wrong: the sidecar does not ask again for what it has sent, so what the server deleted since does not come back.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import stamina
import stamina.instrumentation

from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.share import redact
from traceanalyzer.share.offered import Offer, signature
from traceanalyzer.share.sent import Key, Known, State
from traceanalyzer.share.transfer import Denied, Failure, Refused, Report, Server, Unavailable

TRIES = 6
LONGEST_WAIT_S = 120.0
"""Whoever waits at a terminal is not kept longer than that before another try."""
OTHERS_S = 600.0
"""How long it is waited for another upload that is sending the same file."""
LABELS = ("model", "engine", "host", "revision", "environment")
LONGEST_LABEL = 200
_FIRST_WAIT_S = 0.5
_GIVE_UP_AFTER = 2
_BLOCK = 1 << 20

Say = Callable[[str], None]


class Gone(Failure):
    """The file is not there any more, or is another one now."""


class Busy(Failure):
    """Another upload is sending the same file."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A trace that the server has.

    page: the address of its page. bytes: what travelled, 0 where the server had it. counts: what was redacted in it.
    """

    name: str
    page: str
    bytes: int
    counts: Mapping[str, int]


class Uploader:
    """Sends single files, each at most once."""

    def __init__(
        self, server: Server, base: str, state: State, level: redact.Level, labels: Mapping[str, str], report: Report
    ) -> None:
        """Keep what all files have in common.

        Args:
            server: to send to.
            base: its address, for the state.
            state: what was sent before.
            level: how much is redacted.
            labels: the user's, over those of the files.
            report: told of the bytes that were sent and the bytes in all of the trace under way.
        """
        self._server, self._base, self._state = server, base, state
        self._level, self._labels, self._report = level, labels, report

    def reach(self) -> None:
        """Ask the server for a trace that nobody has.

        Raises:
            Unavailable, Denied: it cannot be sent to now.
        """
        self._server.has("0" * 64)

    def is_settled(self, offer: Offer) -> bool:
        """Whether the file was sent or refused for good."""
        return self._state.find(self._key(offer)) is not None

    def send(self, offer: Offer, wait_s: float = 0.0, insist: Say | None = None) -> Sent:
        """Send one file.

        Args:
            offer: the file.
            wait_s: how long to wait for another upload that is sending it.
            insist: try several times, and tell of each that did not work; None: try once.

        Raises:
            Failure: the server has not taken it.
            TraceAnalyzerError: the file cannot be read.
            OSError: the file or its copy cannot be read or written.
        """
        key = self._key(offer)
        with self._state.hold(key, wait_s) as is_held:
            before = self._before(offer, self._state.find(key))
            if before is not None:
                return before
            if not is_held:
                raise Busy(f"another upload is sending {offer.path.name}")
            try:
                return self._send(offer, key, insist)
            except Refused as error:
                if error.is_final:
                    self._state.note_refused(key, error.message)
                raise

    def _key(self, offer: Offer) -> Key:
        # A name may hold bytes that are no text.
        path = os.fsencode(offer.path.resolve()).decode("utf-8", "backslashreplace")
        return Key(path, offer.signature, self._level, str(redact.VERSION), self._base)

    def _before(self, offer: Offer, known: Known | None) -> Sent | None:
        """What became of it earlier; None: it is to be sent, also where the server has lost or deleted it since."""
        if known is None:
            return None
        if known.status == "refused" or known.sha256 is None or known.page is None:
            raise Refused(f"{known.reason} (earlier; not sent again unless it changes)", is_final=True)
        if not self._server.has(known.sha256):
            return None
        if self._labels:
            self._server.relabel(known.sha256, self._labels)
        return Sent(offer.path.name, known.page, 0, {})

    def _send(self, offer: Offer, key: Key, insist: Say | None) -> Sent:
        with self._state.outgoing() as folder:
            copy = folder / "trace"
            counts = self._redacted(offer, copy)
            sha256 = _sha256(copy)
            labels = self._labels_of(offer, copy)
            page, size = self._delivered(sha256, copy, labels, insist)
            self._state.note_sent(key, sha256, page)
        return Sent(offer.path.name, page, size, counts)

    def _redacted(self, offer: Offer, copy: Path) -> Mapping[str, int]:
        try:
            counts = redact.redact_file(offer.path, copy, self._level).counts
            is_same = signature(offer.path) == offer.signature
        except TraceAnalyzerError as error:
            if not offer.path.exists():
                raise Gone(f"{offer.path.name} is not there any more") from error
            if isinstance(error.__cause__, OSError):
                raise
            raise Refused(str(error), is_final=True) from error
        except FileNotFoundError as error:
            raise Gone(f"{offer.path.name} is not there any more") from error
        if not is_same:
            raise Gone(f"{offer.path.name} changes while it is read")
        return counts

    def _labels_of(self, offer: Offer, copy: Path) -> dict[str, str]:
        """From the copy: labels say no more than the trace that is sent."""
        facts = redact.facts(copy)
        found = {
            "model": facts.model,
            "engine": facts.engine,
            "host": facts.host,
            "recording": facts.recording,
            "weight_s": None if facts.weight_s is None else f"{facts.weight_s:.9g}",
        }
        name = offer.path.name if self._level == "none" else redact.redacted_name(offer.path.name)
        # What the server would refuse must not keep the trace from it.
        plain = "".join(char if char.isprintable() and char != "\\" else "?" for char in name)
        labels = {**found, **offer.labels, **self._labels, "name": plain[:LONGEST_LABEL]}
        return {key: text for key, text in labels.items() if text and text.isprintable() and len(text) <= LONGEST_LABEL}

    def _delivered(self, sha256: str, copy: Path, labels: Mapping[str, str], insist: Say | None) -> tuple[str, int]:
        if insist is None:
            return self._exchange(sha256, copy, labels)
        stamina.instrumentation.set_on_retry_hooks(())  # they would write to standard error by themselves
        for attempt in stamina.retry_context(
            _waits, attempts=TRIES, timeout=None, wait_initial=_FIRST_WAIT_S, wait_max=LONGEST_WAIT_S
        ):
            with attempt:
                try:
                    return self._exchange(sha256, copy, labels)
                except Unavailable as error:
                    if attempt.num < TRIES and _waits(error) is not False:
                        insist(f"{error}; trying again")
                    raise
        raise AssertionError("the last try returns or raises")

    def _exchange(self, sha256: str, copy: Path, labels: Mapping[str, str]) -> tuple[str, int]:
        """The address of the trace's page, and how many bytes were sent for it."""
        if self._server.has(sha256):
            if self._labels:  # those of the file were sent with it; the user's may be new
                self._server.relabel(sha256, self._labels)
            return self._server.page(sha256), 0
        return self._server.put(sha256, copy, labels, self._report), copy.stat().st_size


def _waits(error: Exception) -> bool | float:
    """Whether another try makes sense, or after how many seconds."""
    if not isinstance(error, Unavailable) or (error.after_s or 0.0) > LONGEST_WAIT_S:
        return False
    # Those that were sent away together do not come back together.
    return True if error.after_s is None else error.after_s + random.uniform(0.1, 1.0)  # noqa: S311


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def send_all(uploader: Uploader, offers: Sequence[Offer], tell: Callable[[Sent], None], say: Say) -> None:
    """Send every file once, in order; those that another upload is sending come last.

    Args:
        uploader: sends them.
        offers: the files.
        tell: told of each trace that the server has.
        say: told in one line what did not work.

    Raises:
        TraceAnalyzerError: something was not sent. Of one file it says why; of several how many, after `say` said why.
            After two in a row that found the server away, or one that it denies, the rest is not tried.
    """
    later: list[Offer] = []
    sent = in_a_row = 0
    for offer, wait_s in _in_turn(offers, later):
        try:
            tell(uploader.send(offer, wait_s, insist=say))
        except (TraceAnalyzerError, OSError) as error:
            failure = error
        else:
            sent, in_a_row = sent + 1, 0
            continue
        if isinstance(failure, Busy) and not wait_s:
            later.append(offer)
            continue
        if len(offers) == 1:
            raise TraceAnalyzerError(described(offer, failure)) from failure
        say(described(offer, failure))
        # One trace that brings the server to its knees is no reason to give up; a server that is away is.
        in_a_row = in_a_row + 1 if isinstance(failure, Unavailable) else 0
        if isinstance(failure, Denied) or in_a_row == _GIVE_UP_AFTER:
            say("the other traces would fare alike and are not tried")
            break
    if sent < len(offers):
        raise TraceAnalyzerError(f"{len(offers) - sent} of {len(offers)} traces were not sent")


def described(offer: Offer, error: Exception) -> str:
    """What went wrong with a file, in one line that names it."""
    text = f"the system refuses: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    return text if offer.path.name in text else f"{offer.path.name}: {text}"


def _in_turn(offers: Iterable[Offer], later: list[Offer]) -> Iterable[tuple[Offer, float]]:
    yield from ((offer, 0.0) for offer in offers)
    yield from ((offer, OTHERS_S) for offer in later)


def checked_labels(texts: Sequence[str]) -> dict[str, str]:
    """Labels of the form KEY=VALUE.

    Raises:
        InputError: one has another form or an unknown key, is given twice, or could not be shown on one line.
    """
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in LABELS or not equals or not value:
            raise InputError(f"--label: {text!r} is no label", f"KEY=VALUE with one of {', '.join(LABELS)}")
        if key in labels:
            raise InputError(f"--label: {key} is given twice")
        if len(value) > LONGEST_LABEL or not value.isprintable():
            raise InputError(f"--label: {key} is longer than {LONGEST_LABEL} characters, or cannot be printed")
        labels[key] = value
    return labels
