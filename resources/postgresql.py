"""Connections to PostgreSQL, those of the registry and those of the setting `databases`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Engine, create_engine

from drainmark.jobs.errors.environment import extra

_PARAMETERS = {
    "connect_timeout": 10,
    "target_session_attrs": "read-write",
    # A host that vanishes without closing its connections is noticed within the 15 s of the lease.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
"""libpq's parameters; those that the URL sets take precedence."""


def postgresql_engine(url: URL, options: str, **arguments: Any) -> Engine:
    """Return an engine for writing, which is not connected yet.

    Args:
        url: of psycopg.
        options: of each session, such as `-c timezone=UTC`.
        arguments: of `create_engine`.

    Raises:
        UsageError: the driver is not installed.
    """
    given = {name: value for name, value in _PARAMETERS.items() if name not in url.query}
    with extra("postgres", "psycopg is missing"):
        return create_engine(url, connect_args={**given, "options": options}, **arguments)
