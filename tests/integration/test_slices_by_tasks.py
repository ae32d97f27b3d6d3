"""Tasks read the rows of a large group's slices: they are the rows that the run would read, at the same places.

A cluster with another environment on its executors: `tests/cluster/test_isolated_sources.py`. Topics:
`tests/kafka/test_kafka_by_tasks.py`.
"""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from ports import free_ports

import drainmark as dm
from drainmark.jobs.errors import BadInput, DrainmarkError, Halted, StoreUnavailable
from drainmark.jobs.operators.sources import database_source
from drainmark.jobs.runtime.input import row_slices
from drainmark.jobs.tasks.executor import Executor, Here, OnSpark
from drainmark.jobs.tasks.slice_shares import ShareTask
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.testing.session import shared_engine

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
SMALL, LARGE = {"small_group_bytes": 1 << 30}, {"small_group_bytes": 0}
QUERY = "select id, name from people where id > :after and id <= :upto order by id, name"
IDS = [1, 2, 3, 3, 3, 5, 8, 13, 21, 34, 55]


def reading(
    query: str = QUERY, schema: str = "id bigint, name string", rows: int = 100, **more: Any
) -> Callable[[], None]:
    def little() -> None:
        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
        @dm.source(dm.DatabaseSource("crm", query, schema=schema, rows=rows, **more))
        def people(scanned: Any) -> Any:
            return scanned.selectExpr("*", "_position.block as block", "_position.row as row", "_sequence_id as state")

        dm.sink(people, dm.DeltaAppend("kept"))

    return little


def database(folder: Path, ids: Sequence[int], name: str = "p") -> dict[str, Any]:
    with sqlite3.connect(folder / "people.db") as connection:
        connection.execute("create table if not exists people (id integer, name text)")
        connection.executemany("insert into people values (?, ?)", [(n, f"{name}{k}") for k, n in enumerate(ids)])
    return {"databases": {"crm": f"sqlite:///{folder / 'people.db'}"}}


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of shares that tasks have read in each group; most shares have three rows."""
    counts: list[int] = []
    read = row_slices.read_shares

    def counted(executor: Executor, task: Any, wanted: Sequence[Any]) -> Any:
        if isinstance(executor, OnSpark):
            counts.append(len(wanted))
        return read(executor, task, wanted)

    monkeypatch.setattr(row_slices, "read_shares", counted)
    monkeypatch.setattr(row_slices, "SHARE_BYTES", 3 * database_source._ROW_BYTES)
    return counts


def told(result: Result) -> list[tuple[Any, ...]]:
    names = ("state", "block", "row", "id", "name")
    return sorted(tuple(row[name] for name in names) for row in result.sink("kept"))


def ran(run_app: RunApp, app: Callable[[], None], home: Path, **settings: Any) -> Result:
    return run_app(app, home=home / "home", settings=settings).run()


@pytest.mark.parametrize(
    "rows", [pytest.param(100, id="one slice", marks=pytest.mark.slow), pytest.param(4, id="several slices")]
)
def test_rows_and_places_are_those_of_a_small_group(
    run_app: RunApp, tmp_path: Path, shares: list[int], rows: int
) -> None:
    """Rows of one cursor value stay together, so a share may have more rows than others."""
    given = database(tmp_path, IDS)
    small = ran(run_app, reading(rows=rows), tmp_path / "small", **given, **SMALL)
    assert shares == []
    large = ran(run_app, reading(rows=rows), tmp_path / "large", **given, **LARGE)
    assert shares == [{100: 4, 4: 4}[rows]]
    assert [row[3] for row in told(small)] == IDS
    assert told(large) == told(small)
    large.rewind(0).run()
    assert [row[1:] for row in told(large)] == [row[1:] for row in told(small)]


def test_a_value_that_does_not_fit_halts(run_app: RunApp, tmp_path: Path, shares: list[int]) -> None:
    given = database(tmp_path, range(5), name="")
    database(tmp_path, [5])
    with pytest.raises(Halted) as caught:
        ran(run_app, reading(schema="id bigint, name bigint", on_bad="halt"), tmp_path, **given, **LARGE)
    unfit = caught.value.__cause__
    assert isinstance(unfit, BadInput)
    said = "the row with id 5: column 'name': 'p0' is no bigint"
    assert unfit.message.startswith(f"query:people#0..5: 'people': row 4: {said}")
    assert unfit.operator == "people"


def test_rows_with_bad_cells_are_in_the_quarantine_with_their_cursor(
    run_app: RunApp, tmp_path: Path, shares: list[int]
) -> None:
    given = database(tmp_path, range(5), name="")
    database(tmp_path, [5])
    database(tmp_path, [6], name="")
    result = ran(run_app, reading(schema="id bigint, name bigint"), tmp_path, **given, **LARGE)
    assert [row[3] for row in told(result)] == [1, 2, 3, 4, 6]
    (bad,) = result.quarantine()
    assert (bad["position"], bad["raw"]) == (4, '{"id": "5", "name": "p0"}')
    assert bad["reason"].startswith("the row with id 5: column 'name': 'p0' is no bigint")


def test_a_column_that_no_cell_is_a_value_of_is_refused(run_app: RunApp, tmp_path: Path) -> None:
    with pytest.raises(DrainmarkError, match="column 'name'"):
        ran(run_app, reading(schema="id bigint, name array<int>"), tmp_path, **database(tmp_path, [1]))


def test_a_database_that_is_away_for_tasks_is_waited_for(
    run_app: RunApp, tmp_path: Path, shares: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, only tasks cannot reach it."""
    given = database(tmp_path, IDS)
    read = row_slices.read_shares

    def away(*arguments: Any) -> Any:
        (tmp_path / "people.db").rename(tmp_path / "away.db")
        (tmp_path / "people.db").mkdir()
        try:
            return read(*arguments)
        finally:
            (tmp_path / "people.db").rmdir()
            (tmp_path / "away.db").rename(tmp_path / "people.db")

    monkeypatch.setattr(row_slices, "read_shares", away)
    with pytest.raises(StoreUnavailable) as caught:
        ran(run_app, reading(), tmp_path, **given, **LARGE)
    assert caught.value.message.startswith("the database 'crm' does not answer the query: ")
    assert (caught.value.operator, bool(caught.value.facts["host"])) == ("people", True)


def test_an_executor_that_does_not_reach_the_database_is_named(
    run_app: RunApp, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task runs here like a task of a remote executor; its environment names a database that does not answer."""
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg")
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("create table people as select 1::bigint as id, 'p'::text as name"))
    (port,) = free_ports(1)
    elsewhere = f"postgresql+psycopg://reader:canary-word@127.0.0.1:{port}/crm"

    def there(session: Any, task: ShareTask, shares: Sequence[Any]) -> Any:
        return Here().run(task, [tuple(shares)])

    monkeypatch.setattr(shared_engine(), "is_ours", False)
    monkeypatch.setattr(row_slices, "read_shares", there)
    monkeypatch.setenv("DRAINMARK_DATABASES__CRM", elsewhere)
    given = {"databases": {"crm": url.render_as_string(hide_password=False)}}
    with pytest.raises(StoreUnavailable) as caught:
        ran(run_app, reading(), tmp_path, **given, **LARGE)
    host = socket.gethostname()
    said = f"'people' is read by tasks, and on {host} that fails: the database 'crm' does not answer the query: "
    assert caught.value.message.startswith(said)
    assert "DRAINMARK_DATABASES__CRM" in (caught.value.remedy or "")
    assert "canary" not in str(caught.value)
