"""The changes between any two states make the later table of the earlier one, whatever happened in between."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hand_runs import NoSpark, engine, without_spark
from harness import done, ids, settle

import drainmark as dm
from drainmark.jobs.errors import RewindRefused, UnknownName, UsageError
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.testing.session import shared_engine

__all__ = ["engine", "without_spark"]

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, n bigint", pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

dm.sink(rows, dm.DeltaAppend("all_rows"))
dm.sink(rows, dm.DatabaseAppend("crm", "copied"))
"""
WITH_KEYS = """
totals = dm.aggregate(rows, keys=["item"], values={"n": dm.sum("n"), "rows": dm.count()}, name="totals")
dm.sink(rows, dm.DeltaUpsert("newest", keys=["item"]))
dm.sink(rows, dm.DeltaOverwrite("snapshot"))
dm.sink(rows, dm.DatabaseUpsert("crm", "copied_newest", keys=["item"]))
dm.sink(totals, dm.DeltaUpsert("item_totals", keys=["item"]))
"""
KEYED = ("newest", "copied_newest", "item_totals")
OTHERS = ("all_rows", "copied", "snapshot")


@pytest.fixture
def root(engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made(tmp_path, monkeypatch)


def made(folder: Path, patched: pytest.MonkeyPatch) -> Path:
    """Make a project, which becomes the working directory."""
    (folder / "inbox").mkdir()
    (folder / "app.py").write_text(APPLICATION)
    (folder / "drainmark.toml").write_text(
        f'applications = ["app.py"]\nhome = "home"\n[databases]\ncrm = "sqlite:///{folder}/crm.db"\n'
    )
    patched.chdir(folder)
    return folder


def write(root: Path, number: int, text: str) -> None:
    (root / "inbox" / f"{number:03}.csv").write_text(text)
    settle(root / "inbox")


def drawn(draw: random.Random) -> str:
    """Return lines for a file; an empty one, and keys that a file has twice, come up."""
    return "".join(f"{draw.choice('abcde')},{draw.randrange(9)}\n" for _ in range(draw.choice([0, 1, 2, 4])))


def read(table: str, at: int) -> Counter[str]:
    return Counter(map(str, dm.read("app", table, at=at).to_pylist()))


def counted(rows: pa.Table) -> Counter[str]:
    """Return rows as a multiset, whatever the order of the columns."""
    return Counter(map(str, rows.select(sorted(rows.column_names)).to_pylist()))


def check(root: Path, table: str, after: int, through: int) -> list[dict[str, Any]]:
    """Make the later table of the earlier one, and compare it; return the changes."""
    changes = dm.changes(table, after=after, through=through).to_pylist()
    made = read(table, after)
    for change in changes:
        kind = change.pop("_change_type")
        sign = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}[kind]
        made[str(change)] += sign
        change["_change_type"] = kind
    assert min(made.values(), default=0) >= 0, "what left was not there"
    assert +made == read(table, through), f"{table} after {after} through {through}"
    assert [change["_sequence_id"] for change in changes] == sorted(change["_sequence_id"] for change in changes)
    if table in KEYED:
        images = Counter((change["_change_type"], change["item"]) for change in changes)
        assert set(images.values()) <= {1}, "a key changes once between two states"
        for kind, other in (("update_preimage", "update_postimage"), ("insert", "delete")):
            keys = {key for found, key in images if found == kind}
            others = {key for found, key in images if found == other}
            assert keys == others if kind == "update_preimage" else not keys & others
    else:
        assert {change["_change_type"] for change in changes} <= {"insert", "delete"}
    return changes


def live(root: Path, draw: random.Random, *, is_keyed: bool) -> None:
    """Run the region, write files, rewind it, replace files. Only tables without keys can have files replaced."""
    if is_keyed:
        (root / "app.py").write_text(APPLICATION + WITH_KEYS)
    for number in range(1, 4):
        write(root, number, drawn(draw))
    done("run", "app.py", "--max-group", "2")
    for number in range(4, 9):
        step = draw.choice(["file", "file", "reset", "reset" if is_keyed else "again"])
        if step == "again":
            old = draw.randrange(1, number - 1)
            write(root, old, drawn(draw))
            done("backfill", "app", "--input", str(root / "inbox" / f"{old:03}.csv"), "--again")
        elif step == "reset":
            done("reset", "app", "--to", str(draw.choice(ids(root)[-3:])))
        write(root, number, drawn(draw))
        done("run", "app.py", "--max-group", str(draw.choice([1, 3])))


@pytest.fixture(scope="module", params=[1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 20))])
def lived(
    engine: NoSpark, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Path, random.Random, bool]]:
    """Yield a project with a history; of odd seeds files are replaced, of even ones there are tables with keys."""
    with pytest.MonkeyPatch.context() as patched:
        folder, draw, is_keyed = (
            made(tmp_path_factory.mktemp("lived"), patched),
            random.Random(request.param),
            request.param % 2 == 0,
        )
        live(folder, draw, is_keyed=is_keyed)
        yield folder, draw, is_keyed


def test_changes_are_the_difference_of_two_states(lived: tuple[Path, random.Random, bool]) -> None:
    root, draw, is_keyed = lived
    states = ids(root)
    for table in (*OTHERS, *KEYED) if is_keyed else OTHERS[:2]:
        for after, through in [(0, states[-1]), *(sorted(draw.choices(states, k=2)) for _ in range(4))]:
            check(root, table, after, through)
        assert check(root, table, states[-1], states[-1]) == []


@pytest.mark.spark
def test_a_frame_of_spark_has_the_rows_of_any_state(lived: tuple[Path, random.Random, bool]) -> None:
    root, draw, is_keyed = lived
    spark = shared_engine().session
    for table in ("all_rows", "snapshot", "newest", "item_totals") if is_keyed else ("all_rows",):
        for at in (0, *draw.choices(ids(root), k=3), ids(root)[-1]):
            assert counted(dm.view(spark, table, at=at).toArrow()) == counted(dm.read("app", table, at=at)), (table, at)
        assert counted(dm.view(spark, table).toArrow()) == counted(dm.read("app", table))
    with pytest.raises(RewindRefused, match="no consistent state 99"):
        dm.view(spark, "all_rows", at=99)


def test_a_time_means_the_last_state_by_then(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        write(root, number, f"tea,{number}\n")
        done("run", "app.py")
    capsys.readouterr()
    done("history", "app", "--json")
    times = [dt.datetime.fromisoformat(entry["committed_at"]) for entry in json.loads(capsys.readouterr().out)]
    assert dm.read("app", "all_rows", at=times[0]).num_rows == 1
    assert dm.read("app", "all_rows", at=times[0].replace(tzinfo=None)).num_rows == 1, "it is UTC"
    assert dm.read("app", "all_rows", at=times[0] - dt.timedelta(seconds=1)).num_rows == 0
    assert dm.read("app", "all_rows", at=times[1]).num_rows == 2
    for wrong in ("2026-01-31", 1.0, True, times[0].date()):
        with pytest.raises(UsageError, match="neither a sequence id nor a time"):
            dm.read("app", "all_rows", at=wrong)  # type: ignore[arg-type]


def test_the_tables_of_a_project_are_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dm.tables() == []
    write(root, 1, "tea,1\n")
    done("run", "app.py")
    capsys.readouterr()
    done("tables", "--json")
    assert dm.tables() == dm.tables("app") == json.loads(capsys.readouterr().out)
    (found,) = (entry for entry in dm.tables() if entry["table"] == "lake/all_rows")
    assert (found["region"], found["role"], found["last_sequence_id"]) == ("app/rows", "sink", 1)
    with pytest.raises(UnknownName, match="ap"):
        dm.tables("ap/rows")


def test_what_happens_to_a_key_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "app.py").write_text(APPLICATION + WITH_KEYS)
    write(root, 1, "tea,1\nmilk,2\n")
    write(root, 2, "tea,5\n")
    done("run", "app.py", "--max-group", "1")
    capsys.readouterr()
    assert invoke(["changes", "newest", "--after", "1", "--through", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"item": "tea", "n": 1, "_sequence_id": 1, "_change_type": "update_preimage"},
        {"item": "tea", "n": 5, "_sequence_id": 2, "_change_type": "update_postimage"},
    ]
    assert invoke(["changes", "all_rows", "--after", "0", "--limit", "1"]) == 0
    assert "1 of 3 rows: --limit 3 shows all" in capsys.readouterr().out


def test_the_rows_of_a_file_that_was_replaced_leave(root: Path) -> None:
    write(root, 1, "tea,1\nmilk,2\n")
    write(root, 2, "tea,5\n")
    done("run", "app.py")
    write(root, 1, "tea,1\n")
    done("backfill", "app", "--input", str(root / "inbox" / "001.csv"), "--again")
    done("run", "app.py")
    for table in ("all_rows", "copied"):
        changes = dm.changes(table, after=2).to_pylist()
        assert [(row["item"], row["_sequence_id"], row["_change_type"]) for row in changes] == [
            ("tea", 1, "delete"),
            ("milk", 1, "delete"),
            ("tea", 3, "insert"),
        ]


def test_what_cannot_be_told_is_refused(root: Path) -> None:
    (root / "app.py").write_text(APPLICATION + WITH_KEYS)
    for number in (1, 2, 3):
        write(root, number, f"tea,{number}\n")
    done("run", "app.py")
    done("reset", "app", "--to", "1")
    with pytest.raises(RewindRefused, match="no consistent state 2") as refused:
        dm.changes("newest", after=2)
    assert dm.changes("newest", after=refused.value.facts["nearest"]) is not None
    with pytest.raises(UsageError, match="comes before state 1"):
        dm.changes("newest", after=1, through=0)
    with pytest.raises(UnknownName, match="newst"):
        dm.changes("newst", after=0)


def test_a_table_with_a_column_of_that_name_is_refused(root: Path) -> None:
    (root / "app.py").write_text(APPLICATION.replace("n bigint", "_change_type bigint"))
    write(root, 1, "tea,1\n")
    done("run", "app.py")
    with pytest.raises(UsageError, match="'all_rows' has a column _change_type of its own"):
        dm.changes("all_rows", after=0)


def test_a_table_comes_before_one_of_a_database_that_is_called_the_same(root: Path) -> None:
    """The region of the database's table comes first by name."""
    (root / "other").mkdir()
    (root / "other" / "1.csv").write_text("pot,7\n")
    settle(root / "other")
    (root / "later.py").write_text(APPLICATION.partition("dm.sink")[0].replace("inbox", "other") +
                                   'dm.sink(rows, dm.DeltaAppend("copied"))\n')  # fmt: skip
    write(root, 1, "tea,1\n")
    done("run", "app.py")
    done("run", "later.py")
    assert dm.changes("copied", after=0)["item"].to_pylist() == ["pot"]
    assert dm.changes("database/crm/copied", after=0)["item"].to_pylist() == ["tea"]
