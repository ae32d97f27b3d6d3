"""Migrations: a new registry is as SQLModel declares; a newer one is refused, an older one is copied first (R6)."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from alembic import op
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, inspect, text
from waiting import SOON

from drainmark.jobs.errors import FormatTooNew
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.resources.registry import migration as migration_module
from drainmark.resources.registry.engines import engine_of
from drainmark.resources.registry.migration import MIGRATIONS, VERSION_TABLE
from drainmark.resources.registry.queries import REVISIONS
from drainmark.resources.registry.registry import Registry
from drainmark.resources.registry.tables import METADATA

LAST, COMING = REVISIONS[-1], f"{len(REVISIONS) + 1:04d}"
NEXT = f'''"""one more column"""
import sqlalchemy as sa

revision = "{COMING}"
down_revision = "{LAST}"


def upgrade(op) -> None:
    op.add_column("drainmark_region", sa.Column("colour", sa.Text, nullable=True))
'''
BROKEN = NEXT + '    op.execute("DROP TABLE no_such_table")\n'


@pytest.fixture
def made(url: str) -> str:
    """Return the URL of a registry at the last revision, with one input, in SQLite and in PostgreSQL."""
    registry = Registry(url)
    registry.triggers.add("app/start", [NewTrigger(uri="file:///a", identity={}, identity_key="1", size_bytes=1)])
    registry.close()
    return url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of a SQLite registry at the last revision, with one input."""
    path = tmp_path / "registry.db"
    registry = Registry(f"sqlite:///{path}")
    registry.triggers.add("app/start", [NewTrigger(uri="file:///a", identity={}, identity_key="1", size_bytes=1)])
    registry.close()
    return path


def next_drainmark(monkeypatch: pytest.MonkeyPatch, folder: Path, migration: str) -> None:
    """Make the Drainmark of this process know one revision more."""
    scripts = folder / "migrations"
    shutil.copytree(MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / f"{COMING}_one_more_column.py").write_text(migration, encoding="utf-8")
    monkeypatch.setattr(migration_module, "MIGRATIONS", scripts)
    monkeypatch.setattr(migration_module, "REVISIONS", (*REVISIONS, COMING))


def dump(file: Path) -> list[str]:
    connection = sqlite3.connect(file)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def test_the_revisions_that_open_fast_are_those_of_the_scripts() -> None:
    revisions = [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
    assert tuple(reversed(revisions)) == REVISIONS
    assert [f"{number:04d}" for number in range(1, len(revisions) + 1)] == list(REVISIONS)  # no gap


def test_a_fresh_registry_is_what_the_models_declare(made: str) -> None:
    registry = Registry(made)
    with registry.database.reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, METADATA) == []
    registry.close()


@pytest.mark.seed("R6")
def test_a_newer_registry_is_refused_and_not_touched(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608
    connection.commit()
    connection.close()
    before = file.read_bytes()
    with pytest.raises(FormatTooNew) as caught:
        Registry(f"sqlite:///{file}")
    assert caught.value.facts["revision"] == "9999"
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["registry.db"]


@pytest.mark.seed("R6")
def test_an_older_registry_is_copied_and_then_migrated(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(file)
    next_drainmark(monkeypatch, tmp_path, NEXT)
    registry = Registry(f"sqlite:///{file}")
    assert registry.pending_count("app/start") == 1
    registry.close()
    assert any("colour" in line for line in dump(file))
    copy = tmp_path / f"registry.db.{LAST}.bak"
    assert dump(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600


@pytest.mark.seed("R6")
def test_a_migration_that_fails_leaves_the_registry_as_it_was(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(file)
    next_drainmark(monkeypatch, tmp_path, BROKEN)
    with pytest.raises(Exception, match="no_such_table"):
        Registry(f"sqlite:///{file}")
    assert dump(file) == before


@pytest.mark.seed("R6")
def test_an_older_registry_is_migrated_in_either_database(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_drainmark(monkeypatch, tmp_path, NEXT)
    registry = Registry(made)
    assert registry.pending_count("app/start") == 1
    assert "colour" in columns(made, "drainmark_region")
    assert whole(made)[VERSION_TABLE] == [(COMING,)]
    registry.close()


@pytest.mark.seed("R6")
def test_a_migration_that_fails_leaves_either_database_as_it_was(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (whole(made), columns(made, "drainmark_region"))
    with monkeypatch.context() as patch:
        next_drainmark(patch, tmp_path, BROKEN)
        with pytest.raises(Exception, match="no_such_table"):
            Registry(made)
    assert (whole(made), columns(made, "drainmark_region")) == before
    registry = Registry(made)  # the Drainmark that wrote it goes on
    assert registry.pending_count("app/start") == 1
    registry.close()


@pytest.mark.seed("R6")
def test_a_newer_registry_is_refused_and_not_touched_in_either_database(made: str) -> None:
    engine = engine_of(made)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))  # noqa: S608
    engine.dispose()
    before = whole(made)
    with pytest.raises(FormatTooNew) as caught:
        Registry(made)
    assert caught.value.facts["revision"] == "9999"
    assert whole(made) == before


def test_threads_make_registries_while_others_of_the_process_use_alembic(tmp_path: Path) -> None:
    """Dagster migrates its own databases in threads of its own.

    Alembic has one context, and one object of operations, for all of a process.
    """
    theirs = ScriptDirectory(str(files("dagster") / "_core/storage/alembic"))

    def made(number: int) -> int:
        registry = Registry(f"sqlite:///{tmp_path / str(number)}.db")
        registry.close()
        return len(columns(f"sqlite:///{tmp_path / str(number)}.db", "drainmark_directory"))

    engine = create_engine("sqlite://")
    with engine.connect() as connection, EnvironmentContext(Config(), theirs), ThreadPoolExecutor(8) as pool:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            assert list(pool.map(made, range(16))) == [3] * 16
            assert op.get_context() is context


def whole(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table of a registry."""
    engine = engine_of(url)
    tables = MetaData()
    with engine.connect() as connection:
        tables.reflect(connection)
        found = tables.tables.items()
        rows = {name: [tuple(row) for row in connection.execute(table.select())] for name, table in found}
    engine.dispose()
    return rows


def columns(url: str, table: str) -> list[str]:
    engine = engine_of(url)
    names = [column["name"] for column in inspect(engine).get_columns(table)]
    engine.dispose()
    return names


def test_a_fresh_registry_is_not_copied(file: Path) -> None:
    assert [path.name for path in file.parent.iterdir() if path.suffix == ".bak"] == []


OPEN = """
import sys
from drainmark.resources.registry.registry import Registry
sys.stdin.readline()
print(Registry(sys.argv[1]).pending_count("app/start"))
"""


def test_four_processes_that_create_one_registry_all_find_it_whole(url: str) -> None:
    command = [sys.executable, "-c", OPEN, url]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate(timeout=SOON)[0] for child in children] == ["0\n"] * 4
