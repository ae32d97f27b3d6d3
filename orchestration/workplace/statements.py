"""The texts of SQL operators: `sql/<app>/<statement>.sql`, in the project or beside the application."""

from __future__ import annotations

from pathlib import Path

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.application import Application


def statement_text(application: Application, name: str, root: Path | None = None) -> str:
    """Return the text of a statement.

    Args:
        root: of the project; without one only the folders around the application's file are searched.

    Raises:
        UsageError: there is none of that name.
    """
    around = Path(application.origin).parents[:4] if application.origin else ()
    candidates = [
        folder / "sql" / application.name / f"{name}.sql" for folder in (*([root] if root is not None else []), *around)
    ]
    for path in candidates:
        if path.is_file():
            return path.read_text()
    where = candidates[0] if candidates else f"sql/{application.name}/{name}.sql"
    raise UsageError(f"there is no statement {name!r}", remedy=f"write it to {where}")
