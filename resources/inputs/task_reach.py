"""What tasks reach of the databases and topics of sources: they are sent names, and find addresses where they run.

On executors of a cluster these come from the environment there. Spark's workers on this machine, which belong to this
user, ask the run that waits for them. So no plan, no function that is sent, and no log of Spark's has a password.
"""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.environment import ClusterRefused

if TYPE_CHECKING:
    from drainmark.resources.kafka.topic import KafkaTopic

_ANSWER_SECONDS = 10.0
_SECRET = re.compile(r"password|passphrase|passwd|secret|private|key\.pem|ssl\.key$|oauthbearer\.config|jaas")
"""In names of settings whose values are never sent, whoever wrote them into a file."""

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
        except ModuleNotFoundError as error:
            raise _lacking(error) from None
        except Exception as error:  # its text may quote the URL
            msg = f"{variable} is no URL of SQLAlchemy's on {socket.gethostname()}: {type(error).__name__}"
            raise ClusterRefused(msg, remedy="postgresql+psycopg://… for example") from None

    def kafka(self, topic: str, *, servers: str, cluster: str | None) -> KafkaTopic:
        from drainmark.resources.kafka.topic import KafkaTopic, client_conf, kafka_library

        try:
            kafka_library()
        except UsageError as error:
            raise _lacking(error.__cause__) from None
        given: Mapping[str, str] = {}
        if cluster is not None and self.address:
            given = _asked(self.address, "kafka", cluster)
        elif cluster is not None:
            given = {name: self._filled(value) for name, value in self.clusters[cluster].items()}
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
        cluster: {name: _referring(cluster, name.lower().replace("_", "."), value) for name, value in given.items()}
        for cluster, given in clusters.items()
    }


def _referring(cluster: str, name: str, value: str) -> str:
    if not _SECRET.search(name) or not _REFERENCE.sub("", value):
        return value
    variable = re.sub(r"\W", "_", f"DRAINMARK_KAFKA__{cluster}__{name}").upper()
    return f"${{{variable}}}"


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
    missing = str(getattr(error, "name", None) or error)
    msg = f"the Python of Spark's workers on {socket.gethostname()} has no {missing}"
    return ClusterRefused(msg, remedy="install it there, as it is here")


# --- workers of this machine --------------------------------------------------------------------------------------


@contextmanager
def told_to_tasks(answer: Callable[[str, str], Any]) -> Iterator[str]:
    """Answer workers of this user inside the block; yield the address, in a folder that nobody else may enter.

    Args:
        answer: returns a JSON-able value for a kind and a name; a UsageError is told.
    """

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            kind, name = json.loads(self.rfile.readline())
            try:
                told = {"value": answer(kind, name)}
            except UsageError as error:
                told = {"refused": [error.message, error.remedy]}
            self.wfile.write(json.dumps(told).encode())

    with tempfile.TemporaryDirectory(prefix="drainmark-") as folder:
        address = os.path.join(folder, "run")
        with socketserver.ThreadingUnixStreamServer(address, Answer) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), name="tell-tasks", daemon=True).start()
            try:
                yield address
            finally:
                server.shutdown()


def _asked(address: str, kind: str, name: str) -> Any:
    """Return what the run says.

    Raises:
        UsageError: it has no such thing.
    """
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        asking.connect(address)
        asking.sendall(f"{json.dumps([kind, name])}\n".encode())
        with asking.makefile("rb") as told:
            answer = json.loads(told.read())
    if "refused" in answer:
        message, remedy = answer["refused"]
        raise UsageError(message, remedy=remedy)
    return answer["value"]
