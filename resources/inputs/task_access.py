"""Access of tasks to the databases and topics of sources: a task is sent names, and finds the addresses itself.

On executors of a cluster, the addresses come from the environment there. Spark's workers on this machine, which belong
to this user and whose environment may be older than the run's, ask the run that waits for them. So no plan, no function
that is sent, and no log of Spark has a password.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from drainmark.jobs.errors import StoreUnavailable, UsageError
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.resources.inputs.task_answers import asked
from drainmark.resources.variables import read_variable

if TYPE_CHECKING:
    from drainmark.resources.kafka.topic import KafkaTopic

_SECRET = re.compile(r"password|passphrase|passwd|secret|private|key\.pem|ssl\.key$|oauthbearer\.config|jaas")
"""Matches the names of settings with secret values; these are never sent, even if a file has them in plain text."""

_FILE = re.compile(r"location$|keytab$|passfile$|^ssl.*(cert|key|ca|crl)$")
"""Matches the names of settings that are paths, usually of certificates."""

_REFERENCE = re.compile(r"\$\{(\w+)\}")
_SHORTEST = 3
"""A shorter value counts as no secret: removing it would make texts unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAccess:
    """The connections of tasks that read a region's starts (`sources.contract.TaskConnections`), without credentials.

    Args:
        clusters: settings of Kafka's clients by cluster; `${VARIABLE}` is a variable of the task's environment.
        address: of the run that answers; "" if the environment of the task has the addresses.
        variables: of the environment that this task has read.
    """

    region: str
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    address: str = ""
    variables: list[str] = field(default_factory=list, compare=False)

    def database(self, name: str) -> Any:
        if self.address:
            return engine_at(asked(self.address, "databases", name))
        variable = database_variable(name)
        url = self._variable(variable)
        try:
            return engine_at(url)
        except ImportError as error:  # psycopg also raises it if it finds no libpq
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
            given = asked(self.address, "kafka", cluster)
        elif cluster is not None:
            given = {name: self._filled(value) for name, value in cluster_of(self.clusters, cluster).items()}
        _hide(*(value for name, value in given.items() if _is_secret(name)))
        return KafkaTopic(topic, client_conf(given, servers=servers, cluster=cluster))

    def redacted(self, text: str) -> str:
        for secret in sorted(_seen, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _filled(self, value: str) -> str:
        """Return a setting with the values of its variables from the environment; these are hidden in texts."""

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
        try:
            value = read_variable(name)
        except UsageError as error:
            raise ClusterRefused(f"{error} ({socket.gethostname()})", remedy=error.remedy) from None
        if value is None:
            raise ClusterRefused(
                f"the variable {name} is not set on {socket.gethostname()}",
                remedy=f"set {name} in the environment of Spark's workers; nothing of this machine's is sent to them",
            )
        return value


_seen: set[str] = set()
"""The secrets that this process knows; `redacted` hides them."""


def database_variable(name: str) -> str:
    """Return the variable that has the URL of a database; the settings use the same one."""
    return f"DRAINMARK_DATABASES__{name.upper()}"


def references(clusters: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the settings of Kafka's clusters in the form that is sent to tasks.

    If the name of a setting marks a secret, and its value has plain text, the value becomes a reference to the variable
    that the settings use, too: DRAINMARK_KAFKA__CLUSTER__NAME.

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
    """Say whether the name of a setting marks its value as a secret."""
    return _SECRET.search(name.lower().replace("_", ".")) is not None


@lru_cache(maxsize=16)
def engine_at(url: Any) -> Any:
    """Return the engine of a database that is read; it keeps no idle connections, and makes no SQLite file."""
    from sqlalchemy import create_engine, event, make_url
    from sqlalchemy.pool import NullPool

    made = make_url(url)
    _hide(made.password or "", *(str(value) for name, value in made.query.items() if _SECRET.search(name.lower())))
    engine = create_engine(made, poolclass=NullPool, hide_parameters=True)
    if made.get_backend_name() == "sqlite":
        event.listen(engine, "do_connect", _require_file)
    return engine


def _require_file(_dialect: Any, _record: Any, arguments: Sequence[str], named: Mapping[str, Any]) -> None:
    """Refuse to connect to an SQLite file that is not there: SQLite would make an empty one."""
    path = arguments[0]
    if path != ":memory:" and not named.get("uri") and not Path(path).exists():
        msg = f"there is no database {path}"
        raise StoreUnavailable(msg, remedy="correct its URL in the setting databases, or put the file there")


def _hide(*values: str) -> None:
    for value in values:
        if len(value) >= _SHORTEST:
            _seen.update((value, quote(value, safe=""), quote_plus(value)))


def _lacking(error: Any) -> ClusterRefused:
    name = getattr(error, "name", None)
    lacks = f"has no {name}" if name else f"cannot import the source's reader: {str(error).partition(chr(10))[0]}"
    msg = f"the Python of Spark's workers on {socket.gethostname()} {lacks}"
    return ClusterRefused(msg, remedy="install it there, as it is here")


def with_paths(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with absolute paths of files: the workers of this machine may run in another folder."""
    return {
        name: os.path.abspath(value) if _FILE.search(name.lower()) and os.path.exists(value) else value
        for name, value in settings.items()
    }
