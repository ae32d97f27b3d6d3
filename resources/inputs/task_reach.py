"""What tasks reach of the databases and topics of sources: they are sent names, and find addresses where they run.

On executors of a cluster these come from the environment there. Spark's workers on this machine, which belong to this
user, ask the run that waits for them. So no plan, no function that is sent, and no log of Spark's has a password.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import socketserver
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.environment import ClusterRefused, EnvironmentFailed

if TYPE_CHECKING:
    from drainmark.resources.kafka.topic import KafkaTopic

_ANSWER_SECONDS = 10.0
_FULL_SECONDS = 0.02
"""Until a task asks again where so many ask at once that the system puts none more into the queue."""

_WAITING = 1024
_LONGEST = 100
"""Bytes of the address of a socket; systems take few more."""

_PREFIX = "drainmark-tell-"
_YOUNG_SECONDS = 60.0
"""A folder is not taken for one of a killed run before: its socket may be about to listen."""

_SECRET = re.compile(r"password|passphrase|passwd|secret|private|key\.pem|ssl\.key$|oauthbearer\.config|jaas")
"""In names of settings whose values are never sent, whoever wrote them into a file."""

_FILE = re.compile(r"location$|keytab$|passfile$|^ssl.*(cert|key|ca|crl)$")
"""In names of settings that are paths, of certificates as a rule."""

_REFERENCE = re.compile(r"\$\{(\w+)\}")
_SHORTEST = 3
"""A shorter value is no secret, and taking it out would make texts unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReach:
    """The reach of tasks that read a region's starts (`sources.contract.TaskConnections`); it has no credentials.

    Args:
        clusters: settings of Kafka's clients by cluster; `${VARIABLE}` stands for one of the environment of the task.
        address: of the run, which answers; "" where the environment does.
        variables: of the environment that this task has looked at.
    """

    region: str
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    address: str = ""
    variables: list[str] = field(default_factory=list, compare=False)

    def database(self, name: str) -> Any:
        if self.address:
            return engine_at(_asked(self.address, "databases", name))
        variable = database_variable(name)
        url = self._variable(variable)
        try:
            return engine_at(url)
        except ImportError as error:  # of psycopg also where it finds no libpq
            raise _lacking(error) from None
        except Exception as error:  # its text may quote the URL
            msg = f"{variable} is no URL of SQLAlchemy's on {socket.gethostname()}: {type(error).__name__}"
            raise ClusterRefused(msg, remedy="postgresql+psycopg://… for example") from None

    def kafka(self, topic: str, *, servers: str, cluster: str | None) -> KafkaTopic:
        from drainmark.resources.kafka.topic import KafkaTopic, client_conf, cluster_of, kafka_library

        try:
            kafka_library()
        except UsageError as error:
            raise _lacking(error.__cause__) from None
        given: Mapping[str, str] = {}
        if cluster is not None and self.address:
            given = _asked(self.address, "kafka", cluster)
        elif cluster is not None:
            given = {name: self._filled(value) for name, value in cluster_of(self.clusters, cluster).items()}
        _hide(*(value for name, value in given.items() if _is_secret(name)))
        return KafkaTopic(topic, client_conf(given, servers=servers, cluster=cluster))

    def redacted(self, text: str) -> str:
        for secret in sorted(_seen, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _filled(self, value: str) -> str:
        """Return a setting with what the environment has for its variables, which nobody is to see."""

        def found(match: re.Match[str]) -> str:
            text = self._variable(match[1])
            _hide(text)
            return text

        return _REFERENCE.sub(found, value)

    def _variable(self, name: str) -> str:
        """Return a variable of the environment of this task.

        Raises:
            ClusterRefused: it is not set.
        """
        self.variables.append(name)
        value = os.environ.get(name)
        if value is None:
            raise ClusterRefused(
                f"the variable {name} is not set on {socket.gethostname()}",
                remedy=f"set {name} in the environment of Spark's workers; nothing of this machine's is sent to them",
            )
        return value


_seen: set[str] = set()
"""What this process was told, and nobody is to see."""


def database_variable(name: str) -> str:
    """Return the variable that has the URL of a database: the one by which settings take it, too."""
    return f"DRAINMARK_DATABASES__{name.upper()}"


def references(clusters: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the settings of Kafka's clusters as tasks are sent them.

    What is a secret by its name, and is written out, is a reference to the variable by which settings take it, too:
    DRAINMARK_KAFKA__CLUSTER__NAME.

    Args:
        clusters: as they are written, with their `${VARIABLE}`s.
    """
    return {
        cluster: {name: _referring(cluster, name, value) for name, value in given.items()}
        for cluster, given in clusters.items()
    }


def _referring(cluster: str, name: str, value: str) -> str:
    if not _is_secret(name) or not _REFERENCE.sub("", value):
        return value
    variable = re.sub(r"\W", "_", f"DRAINMARK_KAFKA__{cluster}__{name}").upper()
    return f"${{{variable}}}"


def _is_secret(name: str) -> bool:
    """Is the value of a setting a secret by its name?"""
    return _SECRET.search(name.lower().replace("_", ".")) is not None


@lru_cache(maxsize=16)
def engine_at(url: Any) -> Any:
    """Return the engine of a database; its connections are not kept while nobody reads."""
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.pool import NullPool

    made = make_url(url)
    _hide(made.password or "", *(str(value) for name, value in made.query.items() if _SECRET.search(name.lower())))
    return create_engine(made, poolclass=NullPool, hide_parameters=True)


def _hide(*values: str) -> None:
    for value in values:
        if len(value) >= _SHORTEST:
            _seen.update((value, quote(value, safe=""), quote_plus(value)))


def _lacking(error: Any) -> ClusterRefused:
    name = getattr(error, "name", None)
    lacks = f"has no {name}" if name else f"cannot import what reads the source: {str(error).partition(chr(10))[0]}"
    msg = f"the Python of Spark's workers on {socket.gethostname()} {lacks}"
    return ClusterRefused(msg, remedy="install it there, as it is here")


# --- workers of this machine --------------------------------------------------------------------------------------


def with_paths(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with whole paths of files: the workers of this machine may be in another folder."""
    return {
        name: os.path.abspath(value) if _FILE.search(name.lower()) and os.path.exists(value) else value
        for name, value in settings.items()
    }


@contextmanager
def told_to_tasks(answer: Callable[[str, str], Any]) -> Iterator[str]:
    """Answer workers of this user inside the block; yield the address, in a folder that nobody else may enter.

    Args:
        answer: returns a JSON-able value for a kind and a name; a UsageError is told.
    """

    class Answer(socketserver.StreamRequestHandler):
        timeout = _ANSWER_SECONDS  # one that says nothing does not keep the run

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
            server = _Answers(path, Answer)
        with server:
            threading.Thread(target=server.serve_forever, args=(0.05,), name="tell-tasks", daemon=True).start()
            try:
                yield address
            finally:
                server.shutdown()


@contextmanager
def _shortened(address: str) -> Iterator[str]:
    """Give a path of a socket that systems take, also where the temporary folder has a long one."""
    if len(os.fsencode(address)) <= _LONGEST:
        yield address
        return
    folder = os.open(os.path.dirname(address), os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


class _Answers(socketserver.ThreadingUnixStreamServer):
    """Answers all tasks of a machine at once; one that went away in between is none of the run's business."""

    request_queue_size = _WAITING
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the task says what it did not get


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of runs of this user that were killed, where nobody answers any more."""
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            is_old = found.st_uid == os.getuid() and time.time() - found.st_mtime > _YOUNG_SECONDS
            if stat.S_ISDIR(found.st_mode) and is_old and not _answers(str(folder / "run")):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # somebody else's, or another one removes it


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


def _asked(address: str, kind: str, name: str) -> Any:
    """Return what the run says.

    Raises:
        UsageError: it has no such thing.
        EnvironmentFailed: it does not answer.
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
    """Connect, also where so many do at once that the queue is full: then the system refuses, and does not wait."""
    until = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            asking.connect(path)
            return
        except (BlockingIOError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(_FULL_SECONDS)
