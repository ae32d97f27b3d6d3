"""The same through Spark: aggregates, handlers, quarantine, pushed rows, followers outside of regions (ER1, ER5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import done, settle
from integration.test_erase import found_in

import drainmark as dm
from drainmark.orchestration.workplace import spark_choice
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

PERSON = "canary-17@example.org"
WHERE = f"customer = '{PERSON}'"
APPLICATION = """
import drainmark as dm
from pyspark.sql import functions as F

@dm.consistent(trigger="operator-driven", rewind_horizon=50)
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="customer string, item string, n bigint",
                            pattern="*.csv", settle=0, max_bad_ratio=1.0))
def rows(scanned):
    return scanned

@dm.functor
def sold(rows):
    return dm.select(rows, "customer", "item", (F.col("n") * 2).alias("n"))

totals = dm.aggregate(sold, keys=["customer"], values={"n": dm.sum("n"), "best": dm.top("item", 2, by="n")},
                      name="totals")
once = dm.deduplicate(rows, keys=["customer", "item"], name="once")
dm.sink(sold, dm.DeltaAppend("sold_rows"))
dm.sink(once, dm.DeltaAppend("once_rows"))
dm.sink(sold, dm.DeltaUpsert("newest", keys=["item"]))
dm.sink(totals, dm.DeltaUpsert("customer_totals", keys=["customer"]))

@dm.autonomous
@dm.functor
def followed(sold):
    return dm.select(sold, "customer", "n")

dm.sink(followed, dm.DeltaAppend("followed_rows"))
"""
FILES = (f"ann,tea,1\n{PERSON},cup,2\n", f"{PERSON},pot,x\n{PERSON},cup,4\nbob,cup,5\n", f"{PERSON},jug,6\nann,jug,1\n")


@pytest.fixture
def root(engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spark_choice, "make_engine", lambda settings, is_service=False: engine)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\nhome = "home"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(table: str, column: str = "customer", at: int | None = None) -> list[Any]:
    return sorted(dm.read("app", table, at=at)[column].to_pylist())


@pytest.mark.seed("ER1")
def test_a_person_leaves_what_spark_wrote(root: Path) -> None:
    (root / "app.py").write_text(APPLICATION)
    for number, text in enumerate(FILES):
        (root / "inbox" / f"{number}.csv").write_text(text)
        settle(root / "inbox")
        done("run", "app.py")
    assert len(found_in(root / "home")) > 8
    done("erase", "--where", WHERE, "--certificate", "certificate.json")
    certificate = json.loads((root / "certificate.json").read_text())
    assert certificate["found_afterwards"] == []
    assert found_in(root / "home") == {}
    assert values("sold_rows") == values("once_rows") == ["ann", "ann", "bob"]
    assert values("sold_rows", at=1) == ["ann"]
    assert values("newest") == ["ann", "ann", "bob"]
    assert values("customer_totals") == ["ann", "bob"]
    assert {each["table"]: each["rows"] for each in certificate["outside"] if "table" in each} == {
        "lake/followed_rows": 3
    }
    (root / "inbox" / "3.csv").write_text("bob,mug,7\nann,tea,3\n")
    settle(root / "inbox")
    done("run", "app.py")
    assert dm.read("app", "customer_totals").sort_by("customer")["n"].to_pylist() == [10, 24]
    assert values("once_rows", "item") == ["cup", "jug", "mug", "tea"]
    done("reset", "app", "--to", "2")
    assert values("newest") == ["ann", "bob"]
    assert found_in(root / "home") == {}


HANDLER = """
import drainmark as dm
import pyarrow as pa

@dm.consistent(trigger="operator-driven")
@dm.source(dm.ReplayableStart(schema="customer string, n bigint", rows=2, seconds=0))
def rows(scanned):
    return scanned

dm.sink(rows, dm.DeltaAppend("all_rows"))
"""
KEEPER = """
@dm.operator(output="customer string")
class Keeper(dm.StateHandler):
    def __init__(self):
        self.seen = []

    def process(self, rows, context):
        fresh = [name for name in rows["customer"].unique().to_pylist() if name not in self.seen]
        self.seen += fresh
        return pa.table({"customer": pa.array(fresh, pa.string())})

    def checkpoint(self, checkpoint):
        checkpoint.write(self.seen)

    def reset(self, checkpoint):
        self.seen = checkpoint.read()

    def reset_to_initial_state(self):
        self.seen = []

dm.sink(Keeper, dm.DeltaAppend("kept_rows"))
"""


def push(root: Path, *names: str) -> None:
    (root / "rows.jsonl").write_text("".join(f'{{"customer": "{name}", "n": 1}}\n' for name in names))
    done("push", "app.py", "rows.jsonl")
    (root / "rows.jsonl").unlink()


@pytest.mark.seed("ER3")
def test_pushed_rows_are_replayed_without_the_person(root: Path) -> None:
    (root / "app.py").write_text(HANDLER)
    for names in (("ann", PERSON), ("bob", "eve"), (PERSON, PERSON)):
        push(root, *names)
        done("run", "app.py")
    done("reset", "app", "--to", "1")
    done("erase", "--where", WHERE, "--certificate", "certificate.json")
    assert found_in(root / "home") == {}
    assert json.loads((root / "certificate.json").read_text())["inputs"] == []
    done("reset", "app", "--to-initial")
    done("run", "app.py")
    assert values("all_rows") == ["ann", "bob", "eve"]
    assert found_in(root / "home") == {}


@pytest.mark.seed("ER5")
def test_a_state_in_which_nobody_can_look_is_named_before_anything_changes(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "app.py").write_text(HANDLER + KEEPER)
    push(root, "ann", PERSON)
    done("run", "app.py")
    before = found_in(root / "home")
    capsys.readouterr()
    done("erase", "--where", WHERE, code=2)
    said = capsys.readouterr().err
    (name,) = [word.rstrip(",") for word in said.split() if word.startswith("state/app/") and "eeper" in word][:1]
    assert "--except" in said
    assert found_in(root / "home") == before
    done("erase", "--where", WHERE, "--except", name, "--certificate", "certificate.json")
    certificate = json.loads((root / "certificate.json").read_text())
    assert name in certificate["not_searched"]
    assert {each["path"].partition("/_staged")[0] for each in certificate["found_afterwards"]} <= {name}
    assert all(path.startswith(name) for path in found_in(root / "home"))
    assert values("all_rows") == values("kept_rows") == ["ann"]
    unknown = ("erase", "--where", "phone = 555-17")
    capsys.readouterr()
    done(*unknown, code=2)
    assert f"--except {name}" in capsys.readouterr().err, "it may be a column of what the handler keeps"
    done(*unknown, "--except", name, "--certificate", "phone.json")
    told = json.loads((root / "phone.json").read_text())["not_searched"]
    assert name in told
    assert any("'phone'" in each for each in told)


CHANGES = """
import drainmark as dm

@dm.consistent(trigger="operator-driven", rewind_horizon=50)
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="op string, seq bigint, item string, customer string",
                            pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

now = dm.apply_changes(rows, keys=["item"], sequence_by="seq", apply_as_deletes="op = 'd'",
                       except_columns=["op", "seq"], name="now")
dm.sink(now, dm.DeltaUpsert("items", keys=["item"]))
"""


@pytest.mark.seed("ER2")
def test_a_deleted_key_does_not_come_back(root: Path) -> None:
    """The row that a change takes back has the person's values, and is the only sign that the key was deleted."""
    (root / "app.py").write_text(CHANGES)
    for number, text in enumerate(("u,1,cup,bob\nu,1,pot,ann\n", f"u,2,cup,{PERSON}\n", f"d,3,cup,{PERSON}\n")):
        (root / "inbox" / f"{number}.csv").write_text(text)
        settle(root / "inbox")
        done("run", "app.py")
    done("erase", "--where", WHERE, "--certificate", "certificate.json")
    assert json.loads((root / "certificate.json").read_text())["found_afterwards"] == []
    assert found_in(root / "home") == {}
    assert [values("items", at=at) for at in (1, 2, 3)] == [["ann", "bob"], ["ann", "bob"], ["ann"]]
    assert values("items") == ["ann"]
    done("reset", "app", "--to", "2")
    assert values("items") == ["ann", "bob"]


PAST = """
past = dm.apply_changes(rows, keys=["item"], sequence_by="seq", except_columns=["op", "seq"], stored_as_scd_type=2)
dm.sink(past, dm.DeltaUpsert("items_then", keys=["item", "valid_from"]))
"""


@pytest.mark.seed("ER2")
def test_a_version_that_a_change_of_the_person_took_back_does_not_come_back(root: Path) -> None:
    """The state knows a change by its sequence as a text, and the table a version by its beginning."""
    (root / "app.py").write_text(CHANGES.partition("now =")[0] + PAST)

    def run(number: int, text: str) -> None:
        (root / "inbox" / f"{number}.csv").write_text(text)
        settle(root / "inbox")
        done("run", "app.py")

    def spans() -> list[tuple[Any, ...]]:
        rows = dm.read("app", "items_then").to_pylist()
        return sorted((row["customer"], row["valid_from"], row["valid_to"]) for row in rows)

    run(0, f"u,10,cup,{PERSON}\nu,20,cup,bob\n")
    run(1, f"u,20,cup,{PERSON}\n")
    assert spans() == [(PERSON, 10, None)]
    done("erase", "--where", WHERE)
    assert found_in(root / "home") == {}
    assert spans() == []
    run(2, "u,15,cup,eve\n")
    assert spans() == [("eve", 15, None)]
