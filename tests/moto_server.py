"""A moto server as a program: `python moto_server.py ADDRESS PORT` prints its port, and ends when its input ends.

Moto checks `If-None-Match` first and writes later, so two puts at once may both succeed, and Drainmark refuses it. Here
such puts are served one after the other.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer

_serve = DomainDispatcherApplication.__call__
_puts = threading.Lock()


def _in_turn(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
    if "HTTP_IF_NONE_MATCH" not in environ:
        return _serve(self, environ, start_response)
    with _puts:
        return _serve(self, environ, start_response)


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = _in_turn  # type: ignore[method-assign]
    server = ThreadedMotoServer(ip_address=sys.argv[1], port=int(sys.argv[2]), verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
