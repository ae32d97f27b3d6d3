"""Answers of a run to tasks of this machine, at a Unix socket: addresses with passwords, which no plan may contain.

Workers of local Spark belong to the user of the run, and no other user may enter the folder of the socket.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import socketserver
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.environment import EnvironmentFailed

_ANSWER_SECONDS = 10.0
_FULL_SECONDS = 0.02
"""The pause before a task connects again, if the queue of the socket is full."""

_WAITING = 1024
_LONGEST = 100
"""The longest address of a socket, in bytes; systems allow only a few more."""

_PREFIX = "drainmark-tell-"
_YOUNG_SECONDS = 60.0
"""A younger folder never counts as abandoned by a killed run: its socket may be about to listen."""


@contextmanager
def told_to_tasks(answer: Callable[[str, str], Any]) -> Iterator[str]:
    """Answer workers of this user inside the block; yield the address, in a folder that no other user may enter.

    Args:
        answer: returns a JSON-able value for a kind and a name; a UsageError is sent to the task.
    """

    class RequestHandler(socketserver.StreamRequestHandler):
        timeout = _ANSWER_SECONDS  # a task that sends nothing does not hold up the run

        def handle(self) -> None:
            kind, name = json.loads(self.rfile.readline())
            try:
                told = {"value": answer(kind, name)}
            except UsageError as error:
                told = {"refused": [error.message, error.remedy]}
            self.wfile.write(json.dumps(told).encode())

    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        address = os.path.join(folder, "run")
        with _shortened(address) as path:
            server = _Answers(path, RequestHandler)
        with server:
            threading.Thread(target=server.serve_forever, args=(0.05,), name="tell-tasks", daemon=True).start()
            try:
                yield address
            finally:
                server.shutdown()


@contextmanager
def _shortened(address: str) -> Iterator[str]:
    """Yield a path for a socket that is short enough for the system, even if the temporary folder's path is long."""
    if len(os.fsencode(address)) <= _LONGEST:
        yield address
        return
    folder = os.open(os.path.dirname(address), os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


class _Answers(socketserver.ThreadingUnixStreamServer):
    """A server that answers tasks of this machine in parallel; it ignores errors of tasks that have gone."""

    request_queue_size = _WAITING
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the task itself reports that it got no answer


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of killed runs of this user: those with a socket that no process answers."""
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            is_old = found.st_uid == os.getuid() and world.now() - found.st_mtime > _YOUNG_SECONDS
            if stat.S_ISDIR(found.st_mode) and is_old and not _answers(str(folder / "run")):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # it is another user's, or another process removes it


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            with _shortened(address) as path:
                asking.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            pass  # its queue is full
    return True


def asked(address: str, kind: str, name: str) -> Any:
    """Return the answer of the run at an address.

    Raises:
        UsageError: the run's settings do not have that name.
        EnvironmentFailed: the run does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_ANSWER_SECONDS)
            with _shortened(address) as path:
                _connect(asking, path)
            asking.sendall(f"{json.dumps([kind, name])}\n".encode())
            with asking.makefile("rb") as told:
                answer = json.loads(told.read())
    except (OSError, ValueError) as error:
        msg = f"a task does not get the address of {name!r} from its run: {error} ({address})"
        remedy = "a new attempt starts by itself; Spark's workers and the run have to see the same temporary folder"
        raise EnvironmentFailed(msg, remedy=remedy) from None
    if "refused" in answer:
        message, remedy = answer["refused"]
        raise UsageError(message, remedy=remedy)
    return answer["value"]


def _connect(asking: socket.socket, path: str) -> None:
    """Connect; if the queue of the socket is full, the system refuses instead of waiting, so retry."""
    until = world.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            asking.connect(path)
            return
        except (BlockingIOError, ConnectionRefusedError):
            if world.monotonic() > until:
                raise
            world.sleep(_FULL_SECONDS)
