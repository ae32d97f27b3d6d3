"""The server of the pages of a home's regions, on the loopback and read-only; `drainmark dev` starts it.

`python -m drainmark.orchestration.html_report.page_server FD`: FD is the number of a socket that listens. The server
ends with the process that started it. It reads the tables at a request, at most every FRESH_SECONDS; it changes
nothing, and loads no code of an application.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from drainmark.jobs.errors import DrainmarkError
from drainmark.orchestration.html_report.page import POLICY, document, index_page, page
from drainmark.orchestration.html_report.page_file import known_graph, report_of
from drainmark.orchestration.html_report.page_text import shown
from drainmark.orchestration.inspection.status import status_of
from drainmark.orchestration.workplace.workplace import Workplace

HOST = "127.0.0.1"
FRESH_SECONDS = 2.0
"""Seconds for which a page is kept before a request makes it again."""

_NAMES = (HOST, "localhost")
_REFRESH_SECONDS = 15
_PARENT_SECONDS = 1.0
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def listening(port: int) -> socket.socket:
    """Return a socket that listens on the loopback: on this port, or on any port if this one is taken."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError):
        return socket.create_server((HOST, 0))


@dataclass(slots=True)
class Pages:
    """The pages of a workplace, made one at a time and kept for FRESH_SECONDS."""

    workplace: Workplace
    _made: dict[str, tuple[float, str]] = field(default_factory=dict)
    _making: threading.Lock = field(default_factory=threading.Lock)

    def at(self, path: str) -> str | None:
        """Return the page at a path, `/` or `/APP/START`; None if there is none.

        Raises:
            DrainmarkError: the region's tables cannot be read.
        """
        with self._making:
            name = path.strip("/")
            regions = self.workplace.known_regions()
            if name and name not in regions:
                return None
            at, made = self._made.get(name, (0.0, ""))
            if not made or time.monotonic() - at > FRESH_SECONDS:
                made = self._page(name) if name else index_page([(each, self._state(each)) for each in regions])
                self._made[name] = (time.monotonic(), made)
            return made

    def _page(self, region: str) -> str:
        place = self.workplace
        report = report_of(place, region, place.store(region).checkpoint, known_graph(place.home, region))
        return page(report, place.settings.dagster_url)

    def _state(self, region: str) -> str:
        return str(status_of(self.workplace, region)["state"])


class PageServer(ThreadingHTTPServer):
    """The HTTP server of pages: GET and HEAD, only with a Host header of this server, against DNS rebinding."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, pages: Pages) -> None:
        super().__init__(listener.getsockname()[:2], _PageRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.pages = pages
        self.hosts = frozenset(f"{name}:{listener.getsockname()[1]}" for name in _NAMES)


class _PageRequest(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10

    def do_GET(self) -> None:
        status, text = self._answer()
        self._send(status, text)

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, str]:
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            return HTTPStatus.MISDIRECTED_REQUEST, _said("This page is served to this machine alone.")
        try:
            found = self.server.pages.at(unquote(urlsplit(self.path).path))
        except DrainmarkError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, _said(str(error))
        except Exception as error:  # e.g. a table that is written at this moment: the next request may succeed
            return HTTPStatus.SERVICE_UNAVAILABLE, _said(f"{type(error).__name__}: {error}")
        if found is None:
            return HTTPStatus.NOT_FOUND, _said("There is no such page: a region has one when it has run.")
        return HTTPStatus.OK, found

    def _send(self, status: HTTPStatus, text: str) -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.OK:
            self.send_header("Refresh", str(_REFRESH_SECONDS))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "drainmark"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library calls it
        """Log nothing: Dagster's terminal is not for requests."""


def _said(text: str) -> str:
    return document("Drainmark", f"<section><p>{shown(text)}</p></section>")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(0)


def main(arguments: Iterable[str]) -> None:
    """Serve until the parent process has ended."""
    from drainmark.resources.settings import load_settings

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    listener = socket.socket(fileno=int(next(iter(arguments))))
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent watch", daemon=True).start()
    with PageServer(listener, Pages(Workplace(load_settings()))) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
