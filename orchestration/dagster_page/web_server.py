"""Dagster's web server behind the guard: `python -m drainmark.orchestration.dagster_page.web_server OPTIONS`.

The options are those of `dagster-webserver`. It is served under the addresses of this machine, `localhost`, the name
that `--host` gives, the host of `dagster_url` and, if it listens on more than the loopback, the name of this machine.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dagster_webserver import app as dagster_app
from dagster_webserver import cli as dagster_cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from drainmark.jobs.errors import DrainmarkError
from drainmark.orchestration.dagster_page.guard import Guard
from drainmark.resources.settings import load_settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_PREFIX = "DAGSTER_WEBSERVER"


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's web server, whose GraphQL comes by POST only, behind the guard.

    Attributes:
        names, origins: see `Guard`.
    """

    names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def build_middleware(self) -> list[Middleware]:
        return [Middleware(Guard, names=self.names, origins=self.origins), *super().build_middleware()]

    async def graphql_http_endpoint(self, request: Request) -> Response:
        """Answer GraphQL, except by GET: Dagster would execute a mutation that stands in the address of an image."""
        if request.method == "GET" and "text/html" not in request.headers.get("Accept", ""):
            return PlainTextResponse("GraphQL is answered to a POST only.", 405, {"Allow": "POST"})
        found: Response = await super().graphql_http_endpoint(request)
        return found


def names_for(host: str, dagster_url: str) -> frozenset[str]:
    """Return the names under which a server that listens on `host` is reached."""
    named = {"localhost", host, urlsplit(dagster_url).hostname or ""}
    return frozenset(name.lower() for name in {*named, *([] if _is_loopback(host) else [socket.gethostname()])} if name)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is told to end, with the exit codes of `dagster-webserver`."""
    command = dagster_cli.dagster_webserver
    with command.make_context("dagster-webserver", list(arguments), auto_envvar_prefix=_PREFIX) as context:
        host = context.params["host"]
    try:
        url = load_settings().dagster_url
    except DrainmarkError as error:
        raise SystemExit(f"{error}") from error
    GuardedWebserver.names = names_for(host, url)
    GuardedWebserver.origins = frozenset([urlsplit(url).netloc.lower()] if url else [])
    if not hasattr(dagster_app, "DagsterWebserver"):
        raise SystemExit("this version of Dagster makes its web server in another way: it would have no guard")
    dagster_app.DagsterWebserver = GuardedWebserver  # type: ignore[misc]
    command.main(args=list(arguments), prog_name="dagster-webserver", auto_envvar_prefix=_PREFIX)


if __name__ == "__main__":
    main(sys.argv[1:])
