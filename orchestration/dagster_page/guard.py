"""The guard before Dagster's web page: it refuses what other pages in an operator's browser could send.

Dagster's web page has no users: whoever reaches it may do everything. On the loopback that is every program of this
machine, and so every web page that a browser here shows: it can send requests to the loopback, though it cannot read
the answers, and under a name that it rebinds to 127.0.0.1 it can read them. Such a request has a foreign `Origin` or
`Host`, or is of the kind that a browser sends without asking the server first; requests of Dagster's own page and of
programs are none of these. A guard is no log-in: programs that may connect are trusted as before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from drainmark.jobs.printable import printable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON = "application/json"
"""The type of all POSTs: a browser asks the server before it sends one of this type to another site."""

_FRAMES = {"X-Frame-Options": "SAMEORIGIN", "Content-Security-Policy": "frame-ancestors 'self'"}
"""Headers of every answer: no other site shows the page in a frame, where clicks could be led. Dagster's page shows
notebooks in frames of its own."""

_OWN_SITES = ("same-origin", "none")
"""Of the header Sec-Fetch-Site: the page itself, and the user. To browsers another port is another origin of the same
site, so `same-site` may be any program that serves pages on this machine."""

Refusal = tuple[HTTPStatus, str]


@dataclass(frozen=True, slots=True)
class Guard:
    """An ASGI application before another one.

    Attributes:
        names: host names under which it is reached, in lower case. Addresses need no name: no DNS can rebind them.
        origins: netlocs of pages that may use it, in lower case, besides the host of the request itself: of a proxy
            that does not pass the `Host` on.
    """

    app: ASGIApp
    names: Collection[str]
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope, Headers(scope=scope))
        if scope["type"] == "websocket":
            if refusal is None:
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008, "reason": ""})  # before the accept: 403
            return
        answer = self.app if refusal is None else PlainTextResponse(printable(refusal[1]), refusal[0])
        await answer(scope, receive, _unframed(send))

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        return self._of_host(headers) or self._of_origin(scope, headers) or _of_type(scope, headers)

    def _of_host(self, headers: Headers) -> Refusal | None:
        hosts = headers.getlist("host")
        name = _name_of(hosts[0]) if len(hosts) == 1 else ""
        if name in self.names or _is_address(name):
            return None
        told = f"set dagster_url = 'http://{', '.join(hosts)}' in drainmark.toml, and start the server again"
        return (
            HTTPStatus.FORBIDDEN,
            f"This page is not served under the name {name!r}. If it is a name of yours: {told}.",
        )

    def _of_origin(self, scope: Scope, headers: Headers) -> Refusal | None:
        for origin in headers.getlist("origin"):
            if origin.partition("://")[2].lower() not in {headers["host"].lower(), *self.origins}:
                told = f"This request comes from a page of another site, {origin!r}, and nothing was done."
                is_ours = f"If that is a proxy before this page: set dagster_url = {origin!r} in drainmark.toml"
                return HTTPStatus.FORBIDDEN, f"{told} {is_ours}, and start the server again."
        site = headers.get("sec-fetch-site", _OWN_SITES[0])
        if site not in _OWN_SITES and not _is_link(scope, headers):
            return HTTPStatus.FORBIDDEN, "This request comes from a page of another site, and nothing was done."
        return None


def _of_type(scope: Scope, headers: Headers) -> Refusal | None:
    if scope.get("method") == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"A POST must have the header Content-Type: {JSON}; nothing was done."
    return None


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:  # e.g. a bracket without its other
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Say whether somebody followed a link to a page, as in an alert: the page itself is no harm, and is not framed."""
    navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return navigates and scope.get("method") in ("GET", "HEAD")


def _unframed(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _FRAMES.items():
                headers.append(name, value)  # policies add up: each must allow
        await send(message)

    return sent
