"""The profiling endpoints of a server that runs already: which engine it is, how to start and to stop a window.

Read in the sources of vLLM 0.33 (`entrypoints/serve/profile/api_router.py`) and SGLang 0.5.23
(`entrypoints/http_server.py`). What could be wrong: an older vLLM takes no body and ignores ours, so that its own
configuration decides on steps, shapes and stacks; where its profiler runs already, it ignores the start as well.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

ASK_S = 10.0
START_S = 120.0
"""The first start in a process imports torch's compiler, and all ranks answer."""
STOP_S = 1800.0
"""vLLM's documentation tells of ten minutes of writing for a large model and a long window."""
NO_PROFILER = (
    "this vLLM has no profiler: start it with --profiler-config "
    """'{"profiler": "torch", "torch_profiler_dir": "/an/absolute/path"}'"""
)
_MOST_BYTES = 1 << 20


class RemoteError(Exception):
    """The server cannot be used as asked; the message is one line."""


class NoAnswer(RemoteError):
    """Nothing came back: whether the server did what it was asked is not known."""


class Server:
    """A server behind `url` (http or https). `engine` is vllm or sglang, `version` None where it does not say."""

    def __init__(self, url: str) -> None:
        """Ask which engine it is. Raises `RemoteError`."""
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._base = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"
        """As it may be shown: without a user's name or password."""
        self.engine, self.version = self._recognise()

    @property
    def name(self) -> str:
        """The engine and its version, as a reader knows them."""
        named = {"vllm": "vLLM", "sglang": "SGLang"}[self.engine]
        return f"{named} {self.version}" if self.version else named

    def has_profiler(self) -> bool:
        """Whether a window can be asked for. Starts none. Raises `RemoteError`."""
        # A vLLM with a profiler has the path for POST only; on SGLang, which always has it, GET would start a window.
        return self.engine != "vllm" or self._request("GET", "/start_profile", ASK_S)[0] == 405

    def start(self, name: str, steps: int, record_shapes: bool, with_stack: bool, folder: str | None) -> None:
        """Start a window that ends by itself after `steps` steps. Raises `RemoteError`.

        Args:
            name: letters, digits and -; it begins the names of the trace files where the server lets us say so.
            folder: where a SGLang server shall write; None: where it writes anyway.
        """
        body: dict[str, Any]
        if self.engine == "vllm":
            kwargs = {"record_shapes": record_shapes, "with_stack": with_stack}
            body = {"profile_prefix": name, "max_iterations": steps, "profiler_kwargs": kwargs}
        else:
            body = {
                "num_steps": steps, "activities": ["CPU", "GPU"], "record_shapes": record_shapes,
                "with_stack": with_stack, "profile_id": name,
            }  # fmt: skip
            if folder is not None:
                body["output_dir"] = folder
        status, text = self._request("POST", "/start_profile", START_S, body)
        if status == 404 and self.engine == "vllm":
            raise RemoteError(NO_PROFILER)
        if status in (401, 403):
            raise RemoteError(f"{self.url} asks for a key (status {status}), which --attach cannot give")
        if status >= 300:
            raise RemoteError(f"the server does not start its profiler: status {status}{_reason(text)}")

    def stop(self) -> bool:
        """End the window; returns when the server has written. False: it says that none was open.

        Raises `RemoteError` where it does not say that it ended.
        """
        status, text = self._request("POST", "/stop_profile", STOP_S)
        if status < 300:
            return True
        # SGLang's endpoint fails where the window has ended by itself.
        if self.engine == "sglang" and status >= 500:
            return False
        raise RemoteError(f"the server does not stop its profiler: status {status}{_reason(text)}")

    def _recognise(self) -> tuple[str, str | None]:
        status, text = self._request("GET", "/version", ASK_S)
        version = _json(text).get("version") if status == 200 else None
        if isinstance(version, str):
            return "vllm", version[:40]
        for path in ("/server_info", "/get_server_info"):
            status, text = self._request("GET", path, ASK_S)
            if status == 200:
                version = _json(text).get("version")
                return "sglang", version[:40] if isinstance(version, str) else None
        raise RemoteError(f"{self.url} is neither vLLM nor SGLang (status {status})")

    def _request(self, method: str, path: str, timeout_s: float, body: dict[str, Any] | None = None) -> tuple[int, str]:
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        headers = {"Connection": "close"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._base + path, data, headers)
            response = connection.getresponse()
            return response.status, response.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoAnswer(f"{self.url} does not answer: {why}") from None
        finally:
            connection.close()


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(text: str) -> str:
    found = _json(text)
    reason = found.get("detail") or found.get("message") or found.get("error")
    if isinstance(reason, dict):
        reason = reason.get("message")
    return f", {reason[:200]}" if isinstance(reason, str) else ""
