"""A proxy on the loopback between a client and an S3 server; it answers some requests wrongly."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal[
    "403", "500", "503", "timeout", "short body", "truncated page", "lost reply", "unconditional", "late write",
    "from the beginning",
]  # fmt: skip
"""A lost reply: the request succeeds, but is answered with a 500. Unconditional: If-Match and If-None-Match are left
out. A late write: the proxy checks If-None-Match, and writes later. From the beginning: start-after is left out."""
Chooser = Callable[[str, str, int], Fault | None]
"""(method, path with query, number of earlier requests with that method and path) -> the fault, or None."""

TIMEOUT_SECONDS = 60.0
"""Longer than any client of the tests waits."""
LATE_SECONDS = 0.05
_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"
_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}


class FaultProxy(ThreadingHTTPServer):
    """The proxy, and a record of the requests.

    Attributes:
        url: the endpoint to give to a client.
        choose: the function that chooses the fault of a request; a test may set it at any time.
        error: the code and the message of a 403 and of a 500.
        seen: "METHOD /path?query" of every request, in order.
        sent: the total bytes of the contents of all answers.
        alter: a function of method, path with query, and content of an answer; it returns the content to send.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.choose: Chooser = lambda method, path, before: None
        self.error = ("InternalError", "We encountered an internal error.")
        self.seen: list[str] = []
        self.sent = 0
        self.alter: Callable[[str, str, bytes], bytes] = lambda method, path, content: content
        self.lock = threading.Lock()

    def fault(self, method: str, path: str) -> Fault | None:
        """Note a request and choose its fault."""
        request = f"{method} {path}"
        with self.lock:
            before = self.seen.count(request)
            self.seen.append(request)
        return self.choose(method, path, before)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and content are two writes: the second one would wait 40 ms
    server: FaultProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault(self.command, self.path)
        if fault == "timeout":
            time.sleep(TIMEOUT_SECONDS)
            self.close_connection = True
        elif fault in ("403", "500", "503"):
            error = self.server.error if fault != "503" else ("SlowDown", "Please reduce your request rate.")
            self._answer(int(fault), {"Content-Type": "application/xml"}, _ERROR.format(*error).encode())
        elif fault == "lost reply":
            self._forward(body)
            self._answer(500, {"Content-Type": "application/xml"}, _ERROR.format(*self.server.error).encode())
        else:
            if fault == "from the beginning":
                self.path = re.sub("&?start-after=[^&]*", "", self.path)
            if fault == "late write" and self._is_there():
                self._answer(412, {"Content-Type": "application/xml"}, _ERROR.format("PreconditionFailed", "").encode())
                return
            if fault in ("unconditional", "late write"):
                del self.headers["If-None-Match"], self.headers["If-Match"]
            status, headers, content = self._forward(body)
            if fault == "truncated page":
                content = content[: len(content) * 2 // 3]
            content = self.server.alter(self.command, self.path, content)
            self._answer(status, headers, content, cut=fault == "short body")

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def _is_there(self) -> bool:
        connection = HTTPConnection(self.server.upstream, timeout=30)
        connection.request("GET", self.path, headers={"Authorization": self.headers.get("Authorization", "")})
        there = connection.getresponse().status == 200
        connection.close()
        time.sleep(LATE_SECONDS)
        return there

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.server.upstream, timeout=30)
        connection.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        headers = {k: v for k, v in answer.getheaders() if self.command == "HEAD" or k.lower() not in _HOP}
        return answer.status, headers, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        if self.command != "HEAD":
            headers = {**headers, "Content-Length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with self.server.lock:
                self.server.sent += len(content)
            self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = cut

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name is the base class's
        """Log nothing."""


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Yield a proxy that serves until the block ends."""
    with FaultProxy(upstream) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.shutdown()
