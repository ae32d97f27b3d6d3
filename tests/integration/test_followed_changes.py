"""A region that follows the changes of another one's table gets those that `dm.changes` tells of each id alone."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hand_runs import NoSpark, engine, without_spark
from harness import done, ids
from test_table_changes import drawn, write

import drainmark as dm
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import load_settings

__all__ = ["engine", "without_spark"]

TABLES = ("all_rows", "newest", "snapshot", "item_totals")
UPSTREAM = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, n bigint", pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

dm.sink(rows, dm.DeltaAppend("all_rows"))
"""
WITH_KEYS = """
totals = dm.aggregate(rows, keys=["item"], values={"n": dm.sum("n"), "rows": dm.count()}, name="totals")
dm.sink(rows, dm.DeltaUpsert("newest", keys=["item"]))
dm.sink(rows, dm.DeltaOverwrite("snapshot"))
dm.sink(totals, dm.DeltaUpsert("item_totals", keys=["item"]))
"""
READER = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("TABLE", changes=True))
def changed(scanned):
    return scanned

dm.sink(changed, dm.DeltaAppend("seen_TABLE"))
"""
SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


@pytest.fixture
def root(engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project, which is the working directory."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "up.py").write_text(UPSTREAM + WITH_KEYS)
    for table in TABLES:
        (tmp_path / f"of_{table}.py").write_text(READER.replace("TABLE", table))
    names = ", ".join(f'"of_{table}.py"' for table in TABLES)
    (tmp_path / "drainmark.toml").write_text(f'applications = ["up.py", {names}]\nhome = "home"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seen(table: str) -> list[dict[str, Any]]:
    return dm.read(f"of_{table}", f"seen_{table}").to_pylist()


def bare(row: dict[str, Any]) -> str:
    """Return the columns that the table has, as text."""
    added = ("_change_type", "_commit_version", "_commit_timestamp", "_sequence_id", "source_file")
    return str(sorted((name, value) for name, value in row.items() if name not in added))


def told(table: str, after: int, through: int) -> Counter[tuple[str, str]]:
    changes = dm.changes(table, after=after, through=through).to_pylist()
    return Counter((row["_change_type"], bare(row)) for row in changes)


def check(root: Path, table: str, first: int) -> None:
    """Compare what was seen with `dm.changes`: up to the first id that was read as a whole, and of each later id."""
    states = ids(root, "up/rows")
    by_id: dict[int, Counter[tuple[str, str]]] = {}
    for row in seen(table):
        by_id.setdefault(row["_commit_version"], Counter())[row["_change_type"], bare(row)] += 1
    rows = dm.read("up", table, at=first).to_pylist()
    assert by_id.pop(first, Counter()) == Counter(("insert", bare(row)) for row in rows)
    later = [number for number in states if number >= first]
    for before, number in itertools.pairwise(later):
        assert by_id.pop(number, Counter()) == told(table, before, number), (table, number)
    assert not by_id
    signs = [(row["_commit_version"], SIGNS[row["_change_type"]]) for row in seen(table)]
    assert signs == sorted(signs), "rows of an id leave before others come, whatever the keys of the reader"
    made: Counter[str] = Counter()
    for row in sorted(seen(table), key=lambda row: row["_commit_version"]):
        made[bare(row)] += SIGNS[row["_change_type"]]
    assert +made == Counter(bare(row) for row in dm.read("up", table, at=states[-1]).to_pylist())


@pytest.mark.seed("CD5")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_a_reader_sees_the_changes_of_each_id(root: Path, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(1, 4):
        write(root, number, drawn(draw) + "z,1\n")
    done("run", "up.py", "--max-group", "2")
    first = ids(root, "up/rows")[-1]
    last = 7 if seed == 1 else 11
    for number in range(4, last + 1):
        for table in TABLES:
            if number in (4, last) or draw.random() < 0.5:
                done("run", f"of_{table}.py")
        write(root, number, drawn(draw))
        done("run", "up.py", "--max-group", str(draw.choice([1, 3])))
    for table in TABLES:
        done("run", f"of_{table}.py")
        check(root, table, first)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_rewind_goes_through_the_chain(root: Path, seed: int) -> None:
    """What was seen of withdrawn ids leaves with them, and the replay is seen under its own ids."""
    draw = random.Random(seed)
    for number in range(1, 4):
        write(root, number, drawn(draw) + "z,1\n")
    done("run", "up.py", "--max-group", "1")
    first = ids(root, "up/rows")[-1]
    for table in TABLES:
        done("run", f"of_{table}.py")
    for number in range(4, 6 if seed == 1 else 8):
        write(root, number, drawn(draw) + f"y,{number}\n")
        done("run", "up.py")
        for table in TABLES:
            done("run", f"of_{table}.py")
    to = draw.choice([number for number in ids(root, "up/rows") if number >= first][:-1])
    done("reset", "up", "--to", str(to), "--cascade")
    for table in TABLES:
        assert all(row["_commit_version"] <= to for row in seen(table))
    done("run", "up.py", "--max-group", str(draw.choice([1, 2])))
    for table in TABLES:
        done("run", f"of_{table}.py")
        check(root, table, first)


def test_a_file_that_replaces_another_one_takes_its_rows_back(root: Path) -> None:
    """A table with keys cannot have files replaced."""
    (root / "up.py").write_text(UPSTREAM)
    for number in (1, 2):
        write(root, number, f"a,{number}\nb,{number}\n")
    done("run", "up.py", "--max-group", "1")
    done("run", "of_all_rows.py")
    for number in (1, 2):
        write(root, number, f"c,{number}\n")
        done("backfill", "up", "--input", str(root / "inbox" / f"00{number}.csv"), "--again")
        done("run", "up.py")
    done("run", "of_all_rows.py")
    check(root, "all_rows", 2)
    assert sum(row["_change_type"] == "delete" for row in seen("all_rows")) == 4


def test_many_ids_are_a_slice_and_none_is_read_twice(root: Path) -> None:
    write(root, 1, "a,0\n")
    done("run", "up.py")
    done("run", "of_newest.py")
    for number in range(2, 9):
        write(root, number, f"a,{number}\n")
    done("run", "up.py", "--max-group", "1")
    done("run", "of_newest.py")
    assert len(ids(root, "of_newest/changed")) == 3
    check(root, "newest", 1)
    done("reset", "of_newest", "--to", "1")
    done("run", "of_newest.py")
    check(root, "newest", 1)


@pytest.mark.seed("CD5")
def test_a_slice_of_few_bytes_ends_at_an_id_in_force(root: Path) -> None:
    """Ids that a rewind withdrew lie before one whose rows are in several files."""
    (root / "up.py").write_text(UPSTREAM.replace('"all_rows"', '"all_rows", partition_by=["item"]'))
    for number in (1, 2):
        write(root, number, f"a,{number}\nb,{number}\n")
    done("run", "up.py", "--max-group", "1")
    done("reset", "up", "--to", "1")
    done("run", "up.py")
    place = Workplace(load_settings())
    access, source = place.access("other/rows"), dm.TableSource("all_rows", changes=True)
    few = SliceLimit(source="rows", max_bytes=1, is_periodic=True)
    last = ids(root, "up/rows")[-1]
    first = source.next_slice({**_position(source, access), "id": 1}, access, few)
    assert first is not None
    assert (first.end["id"], first.facts) == (last, {"ids": [2, last]})
    assert source.next_slice(first.end, access, few) is None
    assert sum(batch.num_rows for batch in source.read(first, access)) == 2
    place.registry.close()


def _position(source: dm.TableSource, access: Any) -> dict[str, Any]:
    whole = source.next_slice(None, access, SliceLimit(source="rows"))
    assert whole is not None
    return dict(whole.end)
