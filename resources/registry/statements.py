"""The statements of the registry, each in a file `sql/TABLE/NAME.sql`, the same for both databases.

If SQLite and PostgreSQL cannot share a statement, each has its file: `NAME.sqlite.sql`, `NAME.postgresql.sql`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import TextClause

FOLDER = Path(__file__).parents[2] / "sql"


@cache
def text_of(name: str) -> str:
    """Return the text of `sql/NAME.sql`, without importing SQLAlchemy, which would take too long for `status`."""
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


@cache
def statement(name: str, *lists: str) -> TextClause:
    """Return `sql/NAME.sql` for SQLAlchemy.

    Args:
        lists: the parameters that are lists of values.
    """
    from sqlalchemy import bindparam, text

    return text(text_of(name)).bindparams(*(bindparam(parameter, expanding=True) for parameter in lists))
