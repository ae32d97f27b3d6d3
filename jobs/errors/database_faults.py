"""Errors of databases, of sources and of sinks: which of them pass, and what the driver says."""

from __future__ import annotations

import re
from typing import Any

_PASSING = re.compile(r"08|40|53|55|57|25006|58")
"""Prefixes of PostgreSQL's codes of temporary errors: connections, conflicts, resources, locks, shut-downs."""

_PASSING_SQLITE = ("locked", "busy", "disk is full", "disk I/O error", "readonly", "unable to open")


def is_passing(error: Exception) -> bool:
    """Say whether an error of a driver, or of SQLAlchemy for it, is temporary.

    SQLite calls an error in a statement operational, too, so its text decides. PostgreSQL has codes.
    """
    if getattr(error, "connection_invalidated", False):
        return True
    cause = _cause(error)
    operational = any(kind.__name__ == "OperationalError" for kind in type(cause).__mro__)
    if type(cause).__module__ == "sqlite3":
        return operational and any(text in str(cause) for text in _PASSING_SQLITE)
    state = getattr(cause, "sqlstate", None)
    return bool(_PASSING.match(state)) if state else operational


def said_by(error: Exception) -> str:
    """Return the first line of a driver's message, followed by PostgreSQL's details, which name the values."""
    cause = _cause(error)
    first = str(cause).strip().partition("\n")[0]
    detail = getattr(getattr(cause, "diag", None), "message_detail", None)
    return f"{first} ({detail})" if detail and detail not in first else first


def _cause(error: Exception) -> Any:
    """Return the driver's error, which SQLAlchemy keeps in its own."""
    return getattr(error, "orig", None) or error
