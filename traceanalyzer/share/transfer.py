"""Talks to the server: asks whether it has a trace, sends one as a stream, and tells apart why it did not work.

    Failure
    |- Unavailable   not now: no answer, a dropped connection, 408, 425, 429, 5xx; another try may work
    |- Denied        not like this, whatever is sent: 401, 403, no server of ours, an untrusted certificate
    `- Refused       not this file: 413, 415, 422 for good; other answers until somebody changes something

An answer is believed only where it names the trace that was sent: a portal or a proxy that says 200 to everything has
stored nothing. Answers are read up to `LARGEST_ANSWER` bytes, as they came. Redirects are not followed, as they would
take the token elsewhere. What could be wrong: the head of an answer that trickles keeps the line busy for up to
`ANSWER_S` per piece.
"""

from __future__ import annotations

import email.utils
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.share.address import Address, Token

LARGEST_ANSWER = 64 << 10
CONNECT_S = 10.0
ANSWER_S = 120.0
"""The server looks through the whole trace before it answers."""
WRITE_S = 60.0
SLOWEST = 16_000
"""Bytes per second: servers close the line on slower senders."""
_CHUNK = 1 << 16
_LONGEST_WAIT_S = 86_400.0
_STATE = "x-traceanalyzer-state"
_FOR_GOOD = {413: "it is too large for the server", 415: "the server does not take such files", 422: "no usable trace"}
_LATER = (408, 425, 429)
_PAGE = re.compile(r"(?:https?://|/)[!-~]{1,2000}")

Report = Callable[[int, int], None]
"""Called with the bytes sent and the bytes in all."""


class Failure(TraceAnalyzerError):
    """Why a trace was not sent, in one line."""


class Unavailable(Failure):
    """Not now.

    after_s: what the server asks to wait, seconds; None where it does not say.
    """

    def __init__(self, message: str, after_s: float | None = None) -> None:
        """Keep how long to wait."""
        super().__init__(message)
        self.after_s = after_s


class Denied(Failure):
    """Nothing can be sent like this."""


class Refused(Failure):
    """This file is not taken; for good where `is_final`."""

    def __init__(self, message: str, is_final: bool) -> None:
        """Keep whether another try makes sense."""
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How to reach the server.

    bytes_per_s: no faster than that, None for as fast as it goes. ca_file: the only authority that is trusted.
    """

    bytes_per_s: float | None = None
    proxy: str | None = None
    ca_file: Path | None = None


class Server:
    """The server at one address."""

    def __init__(self, place: Address, token: Token, line: Line) -> None:
        """Prepare; nothing is sent yet.

        Raises:
            InputError: the certificates or the proxy cannot be used.
        """
        self._place = place
        self._token = token
        self._pace = Pace(line.bytes_per_s)
        try:
            self._client = httpx2.Client(
                verify=True if line.ca_file is None else ssl.create_default_context(cafile=str(line.ca_file)),
                proxy=line.proxy,
                # Proxies of the environment are for other machines.
                trust_env=not place.is_local,
                follow_redirects=False,
                timeout=httpx2.Timeout(connect=CONNECT_S, read=ANSWER_S, write=WRITE_S, pool=CONNECT_S),
                headers={"User-Agent": "traceanalyzer-upload", "Accept-Encoding": "identity"},
            )
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"--ca-file: {line.ca_file} cannot be used: {error.strerror or error}") from error
        except (ValueError, ImportError, httpx2.InvalidURL) as error:
            raise InputError("the proxy of the environment cannot be used", "HTTPS_PROXY, ALL_PROXY") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def has(self, sha256: str) -> bool:
        """Whether the server has the trace.

        Raises:
            Failure: it does not say.
        """
        with self._answer("HEAD", sha256) as answer:
            _bounded(answer)  # read to its end, a line can be used again
        if answer.status_code in (403, 404, 405, 501):  # 403: a token that may only upload; sending says the rest
            return False
        self._check(answer, b"")
        if _STATE not in answer.headers:
            raise self._foreign()
        return True

    def put(self, sha256: str, path: Path, labels: Mapping[str, str], report: Report) -> str:
        """Send a file. Returns the address of the trace's page.

        Args:
            sha256: of the file's bytes.
            path: the file, which does not change meanwhile.
            labels: sent with it.
            report: told of the progress.

        Raises:
            Failure: the server has not confirmed it.
            OSError: the file cannot be read.
        """
        size = path.stat().st_size
        return self._put(sha256, size, self._body(path, size, report), labels)

    def relabel(self, sha256: str, labels: Mapping[str, str]) -> None:
        """Give a trace that the server has other labels: it does not read the body then.

        Raises:
            Failure: the server has not confirmed it, or has the trace no more.
        """
        self._put(sha256, 0, b"", labels)

    def _put(self, sha256: str, size: int, body: Iterator[bytes] | bytes, labels: Mapping[str, str]) -> str:
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        with self._answer("PUT", sha256, content=body, headers=headers, params=dict(labels)) as answer:
            text = _bounded(answer)
        self._check(answer, text)
        said = _decoded(text)
        if said.get("sha256") != sha256:
            raise self._foreign()
        page = said.get("url")
        if isinstance(page, str) and _PAGE.fullmatch(page):
            return self._place.base + page if page.startswith("/") else page
        return self.page(sha256)

    def page(self, sha256: str) -> str:
        """Where a trace's page is."""
        return f"{self._place.base}/t/{sha256}"

    def _body(self, path: Path, size: int, report: Report) -> Iterator[bytes]:
        done = 0
        with path.open("rb") as stream:
            while chunk := stream.read(self._pace.chunk):
                self._pace.wait(len(chunk))
                yield chunk
                done += len(chunk)
                report(done, size)

    @contextmanager
    def _answer(self, method: str, sha256: str, **request: Any) -> Iterator[httpx2.Response]:
        token = self._token.value()
        headers = {**request.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            with self._client.stream(
                method, f"{self._place.base}/api/v1/traces/{sha256}", headers=headers, **request
            ) as answer:
                yield answer
        except httpx2.HTTPError as error:
            raise self._no_answer(error) from error
        except httpx2.InvalidURL as error:
            raise Denied(f"{self._place.base} is no address that can be asked") from error

    def _no_answer(self, error: httpx2.HTTPError) -> Failure:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return Denied(
                    f"the certificate of {self._place.base} is not trusted: {cause.verify_message}",
                    "--ca-file names the certificate of your own authority",
                )
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx2.ProxyError) and str(error).startswith("407"):
            return Denied("the proxy wants a name and a password", "set HTTPS_PROXY in the environment")
        if isinstance(error, httpx2.TimeoutException):
            return Unavailable(f"{self._place.base} does not answer in time")
        return Unavailable(f"{self._place.base} cannot be reached: {_reason(error)}")

    def _check(self, answer: httpx2.Response, text: bytes) -> None:
        """Raise what an answer other than success means."""
        status = answer.status_code
        if status in (200, 201):
            return
        said = _decoded(text)
        detail = next((said[key] for key in ("detail", "title") if isinstance(said.get(key), str) and said[key]), "")
        detail = f": {' '.join(detail.split())[:300]}" if detail else ""
        if status in _FOR_GOOD:
            raise Refused(f"{_FOR_GOOD[status]} ({status}{detail})", is_final=True)
        if status in _LATER or status >= 500:
            raise Unavailable(f"{self._place.base} answers {status}{detail}", _after(answer.headers.get("retry-after")))
        if status == 401:
            has_token = self._token.value() is not None
            raise Denied(
                f"the server {'does not accept the token' if has_token else 'wants a token'} (401{detail})",
                "make one with `traceanalyzer token`; it is read from --token-file or TRACEANALYZER_TOKEN",
            )
        if status == 403:
            raise Denied(f"the server does not let this token upload (403{detail})", "its scope must hold upload")
        if 300 <= status < 400:
            target = answer.headers.get("location", "")[:300]
            raise Denied(f"{self._place.base} redirects to {target}", "give the address behind it with --to")
        if status in (404, 405, 407):
            raise Denied(f"there is no traceanalyzer server at {self._place.base} (it answers {status}{detail})")
        if status >= 400:
            raise Refused(f"the server answers {status}{detail}", is_final=False)
        raise self._foreign()

    def _foreign(self) -> Denied:
        return Denied(
            f"{self._place.base} answers, but not as a traceanalyzer server does",
            "check --to, and what stands between here and there",
        )


class Pace:
    """Keeps what is sent below a rate, over all files."""

    def __init__(self, bytes_per_s: float | None) -> None:
        """None: without a limit."""
        self._rate = bytes_per_s
        self._free_at = 0.0
        # A quarter of a second's worth, so that the line is never silent for long.
        self.chunk = _CHUNK if bytes_per_s is None else max(1024, min(_CHUNK, int(bytes_per_s / 4)))

    def wait(self, size: int) -> None:
        """Wait until so many bytes more may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + size / self._rate


def _bounded(answer: httpx2.Response) -> bytes:
    text = b""
    until = time.monotonic() + ANSWER_S
    for piece in answer.iter_raw():
        text += piece
        if time.monotonic() > until:
            raise httpx2.ReadTimeout("the answer trickles")
        if len(text) > LARGEST_ANSWER:
            return b""  # no answer of ours is that long
    return text


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None where it is neither."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", value.strip(), re.ASCII):
        return min(float(value), _LONGEST_WAIT_S)
    try:
        until = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, until - time.time()), _LONGEST_WAIT_S)


def _reason(error: httpx2.HTTPError) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
