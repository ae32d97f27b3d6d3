"""`trace`: from a file to its ids and rows, and from a row back to its file; without Spark."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import Counting, HandFed

from drainmark.jobs.frames.arrow import delta_schema
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.protocol.row_conditions import conditions
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.tracing.traced_tables import where_of
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

ENTRY = {
    *("region", "trigger", "trigger_kind", "identity", "output", "sequence_id", "epoch", "status", "withdrawn_by"),
    *("replaced_by", "retracted_by", "group", "rows_in", "rows_quarantined", "unmet", "bytes_in", "committed_at"),
    *("attempt", "run_id"),
    *("graph_fingerprint", "params_hash", "drainmark_version", "reason", "reads", "sinks"),
}


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Counting]:
    """Yield a region with two files in one group and one in another; `b` is in two files."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = Counting(place, tmp_path / "inbox")
    for name, values in {"one.csv": ["a", "b", "b"], "two.csv": ["b"], "three.csv": ["c"]}.items():
        scene.write(name, values)
    scene.add("one.csv", "two.csv", "three.csv")
    scene.drain(2)
    yield scene
    place.registry.close()


def call(fed: HandFed, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    found = invoke(["trace", "by_hand", *arguments, "--home", str(fed.workplace.home), "--json"])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return json.loads(captured.out) if not code else json.loads(captured.err)["error"]


def sinks(entry: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    return {sink["table"]: (sink["rows"], sink["changed"]) for sink in entry["sinks"]}


# --- forward ------------------------------------------------------------------------------------------------------


def test_a_file_leads_to_its_id_and_its_rows_in_every_table(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(fed, capsys, "--file", "one.csv", "--limit", "1")
    assert set(found) == ENTRY | {"ids", "origins", "readers"}
    row = fed.history().states[1]
    assert (found["trigger"], found["sequence_id"], found["epoch"]) == (str(fed.inbox / "one.csv"), 1, 1)
    assert (found["status"], found["group"], found["rows_in"]) == ("committed", [1, 2], 3)
    assert (found["attempt"], found["run_id"]) == (row.attempt, row.run_id)
    assert set(found["identity"]) == {"size", "mtime_ns", "inode"}
    # File two has changed `b` since then: the visible table shows one of the two keys of file one.
    assert sinks(found) == {"lake/kept": (3, None), "state/by_hand/last": (2, None), "lake/last": (1, 2)}
    kept = found["sinks"][0]
    assert (len(kept["sample"]), kept["sample"][0]["_sequence_id"]) == (1, 1)
    assert [entry["sequence_id"] for entry in found["ids"]] == [1]
    assert set(found["ids"][0]) == ENTRY


def test_versions_are_those_that_published_the_group(fed: Counting) -> None:
    tracer = Tracer.of(fed.workplace, fed.region)
    versions = [{sink["table"]: sink["version"] for sink in tracer.sequence(n)["sinks"]} for n in (1, 2, 3)]
    store = fed.workplace.store(fed.region)
    assert versions[0] == versions[1], "one commit a group"
    assert versions[2] == {table.name: store.table(table.name).delta_version() for table in fed.tables}
    assert all(versions[0][name] + 1 == versions[2][name] for name in versions[2])


@pytest.mark.seed("AU10")
def test_a_table_to_which_a_group_wrote_nothing_is_published(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    before = [sink["version"] for sink in Tracer.of(fed.workplace, fed.region).sequence(3)["sinks"]]
    fed.write("empty.csv", [])
    fed.add("empty.csv")
    fed.drain()
    found = call(fed, capsys, "--file", "empty.csv")
    assert [sink["version"] for sink in found["sinks"]] == before, "as the state before it left them"
    assert invoke(["trace", "by_hand", "--file", "empty.csv", "--home", str(fed.workplace.home)]) == 0
    assert "not published" not in capsys.readouterr().out


@pytest.mark.seed("AU10")
def test_tables_are_published_where_the_first_group_is_empty(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = Counting(place, tmp_path / "inbox")
    scene.write("empty.csv", [])
    scene.add("empty.csv")
    scene.drain()
    versions = {sink["version"] for sink in Tracer.of(place, scene.region).file("empty.csv")["sinks"]}
    assert None not in versions
    place.registry.close()


def test_a_group_that_is_committed_and_not_published_is_traced_from_its_staged_files(fed: Counting) -> None:
    fed.write("four.csv", ["d", "d"])
    fed.add("four.csv")
    fed.owner = region_owner(fed.workplace, fed.region)
    fed.owner.claim(fed.tables)
    fed.owner.groups.commit(fed.group(1))
    fed.owner.leave()
    found = Tracer.of(fed.workplace, fed.region).file("four.csv")
    assert (found["status"], found["sequence_id"]) == ("committed", 4)
    assert sinks(found) == {"lake/kept": (2, None), "state/by_hand/last": (1, None), "lake/last": (0, 1)}
    assert {sink["version"] for sink in found["sinks"]} == {None}


def test_every_id_of_a_file_is_listed_with_what_became_of_it(fed: Counting) -> None:
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    assert Tracer.of(fed.workplace, fed.region).file("two.csv")["status"] == "pending"
    interventions.skip(fed.workplace, fed.region, ["three.csv"], "nonsense")
    fed.drain()
    tracer = Tracer.of(fed.workplace, fed.region)

    two = tracer.file("two.csv")
    assert [(e["sequence_id"], e["status"], e["withdrawn_by"]) for e in two["ids"]] == [
        (2, "withdrawn", 4), (6, "committed", None),
    ]  # fmt: skip
    assert (two["sequence_id"], sinks(two)["lake/kept"]) == (6, (1, None))
    assert sinks(two["ids"][0])["lake/kept"] == (0, None)
    three = tracer.file("three.csv")
    assert [(e["sequence_id"], e["status"], e["reason"]) for e in three["ids"]] == [
        (3, "withdrawn", None), (5, "skipped", "nonsense"),
    ]  # fmt: skip


def test_a_replaced_state_names_the_one_in_its_place(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    scene.write("a", ["1"])
    scene.add("a")
    scene.drain()
    plan_queue(place, scene.region, Wanted(pattern=str(scene.inbox / "a"), again=True)).carry_out(place)
    waiting = Tracer.of(place, scene.region).file("a")
    assert [entry["status"] for entry in waiting["ids"]] == ["committed", "pending"]
    scene.drain()
    entries = Tracer.of(place, scene.region).file("a")["ids"]
    assert [(e["sequence_id"], e["status"], e["replaced_by"]) for e in entries] == [
        (1, "replaced", 2), (2, "committed", None),
    ]  # fmt: skip
    assert [e["identity"].get("again") for e in entries] == [None, 1]
    place.registry.close()


def superseded(scene: HandFed, name: str, values: list[str]) -> None:
    """Let a run find that a pending file has changed, and let the next scan take the new file."""
    registry = scene.workplace.registry
    with scene.owning() as owner:
        (trigger,) = registry.triggers.pending(scene.region, 1)
        registry.triggers.mark(scene.region, owner.epoch, [trigger.id], TriggerStatus.SUPERSEDED, "it changed")
    scene.write(name, values)
    scene.add(name)


def test_a_file_that_changed_before_it_was_read_shows_what_became_of_the_one_that_is_there(fed: Counting) -> None:
    """The earlier file never got an id, so it does not matter, although the registry still has it (I2)."""
    fed.write("four.csv", ["d"])
    fed.add("four.csv")
    superseded(fed, "four.csv", ["d", "e"])
    waiting = Tracer.of(fed.workplace, fed.region).file("four.csv")
    assert [entry["status"] for entry in waiting["ids"]] == ["superseded", "pending"]
    superseded(fed, "four.csv", ["d", "e", "f"])
    fed.drain()
    found = Tracer.of(fed.workplace, fed.region).file("four.csv")
    assert [(entry["status"], entry["sequence_id"]) for entry in found["ids"]] == [
        ("superseded", None), ("superseded", None), ("committed", 4),
    ]  # fmt: skip
    assert (found["status"], found["sequence_id"], found["bytes_in"]) == ("committed", 4, 6)
    assert sinks(found)["lake/kept"] == (3, None)


def test_what_is_refused_in_the_place_of_a_superseded_file_is_what_is_there(fed: Counting) -> None:
    fed.write("four.csv", ["d"])
    fed.add("four.csv")
    superseded(fed, "four.csv", ["d", "e"])
    with fed.owning() as owner:
        (trigger,) = fed.workplace.registry.triggers.pending(fed.region, 1)
        owner.halts.refuse([trigger], "no CSV")
        fed.workplace.registry.triggers.mark(fed.region, owner.epoch, [trigger.id], TriggerStatus.REFUSED, "no CSV")
    found = Tracer.of(fed.workplace, fed.region).file("four.csv")
    assert [entry["status"] for entry in found["ids"]] == ["superseded", "refused"]
    assert (found["status"], found["reason"]) == ("refused", "no CSV")


# --- and back -----------------------------------------------------------------------------------------------------


def test_a_row_leads_back_to_its_file(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(fed, capsys, "--table", "kept", "--where", "value=b")
    assert (found["table"], found["rows"], found["where"]) == ("lake/kept", 3, {"value": "b"})
    assert [Path(uri).name for uri in found["triggers"]] == ["one.csv", "two.csv"]
    assert [entry["sequence_id"] for entry in found["ids"]] == [1, 2]
    narrowed = call(fed, capsys, "--table", "kept", "--where", "value=b", "--where", "_sequence_id=2")
    assert (narrowed["rows"], [Path(uri).name for uri in narrowed["triggers"]]) == (1, ["two.csv"])


def test_a_condition_is_written_as_that_of_an_erasure(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(fed, capsys, "--table", "kept", "--where", "value IN ('b', c) AND _sequence_id IN (2, 3)")
    assert (found["rows"], found["where"]) == (2, {"value": ["b", "c"], "_sequence_id": ["2", "3"]})
    assert [Path(uri).name for uri in found["triggers"]] == ["three.csv", "two.csv"]
    assert call(fed, capsys, "--table", "kept", "--where", "value IN (null, 'a')")["rows"] == 1


def test_a_key_leads_to_its_last_change_and_with_all_to_every_change(
    fed: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    last = call(fed, capsys, "--table", "last", "--where", "value=b")
    assert ([entry["sequence_id"] for entry in last["ids"]], last["rows"]) == ([2], 1)
    every = call(fed, capsys, "--table", "last", "--where", "value=b", "--all")
    assert [entry["sequence_id"] for entry in every["ids"]] == [1, 2]
    assert [Path(uri).name for uri in every["triggers"]] == ["one.csv", "two.csv"]
    assert call(fed, capsys, "--table", "state/by_hand/last", "--where", "value=b")["rows"] == 2


@pytest.mark.parametrize(
    ("kind", "value", "asked"),
    [
        ("double", math.nan, "NaN"),
        ("double", -0.0, "0"),
        ("timestamp", dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), "2026-01-31T12:00:00"),
        ("timestamp_ntz", dt.datetime.fromisoformat("2026-01-31T12:00"), "2026-01-31T12:00:00Z"),
        ("timestamp_ntz", None, "null"),
    ],
)
def test_a_value_is_compared_in_the_type_of_the_column(kind: str, value: Any, asked: str) -> None:
    """As an erasure does it."""
    fields = [{"name": "who", "type": kind, "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    table = RegionTable(name="lake/kept", role=TableRole.APPEND, operator="kept", schema_json=schema)
    rows = pa.table({"who": [value, None]}, schema=pa.schema(delta_schema(schema)))
    found = rows.filter(where_of(table, conditions([f"who = {asked}"])))
    assert found.num_rows == (1 if value is not None else 2)


def test_null_and_no_row_are_answers_too(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    for where in ("value=null", "value=nobody"):
        found = call(fed, capsys, "--table", "kept", "--where", where)
        assert (found["rows"], found["ids"], found["triggers"]) == (0, [], [])
    assert call(fed, capsys, "--table", "kept")["rows"] == 5


# --- questions without an answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "identity", "told"),
    [
        (("--file", "onne.csv"), "UNKNOWN_NAME", "one.csv"),
        (("--file", "completely different"), "UNKNOWN_NAME", "drainmark scan by_hand"),
        (("--sequence", "9"), "UNKNOWN_NAME", "3"),
        (("--table", "lst", "--where", "value=b"), "UNKNOWN_NAME", "last"),
        (("--table", "last", "--where", "valu=b"), "UNKNOWN_NAME", "value"),
        (("--table", "kept", "--where", "_sequence_id=one"), "USAGE", ""),
        (("--table", "kept", "--where", "value"), "USAGE", ""),
        (("--table", "kept", "--where", "value = a OR value = b"), "USAGE", "for example"),
        (("--where", "value=b"), "USAGE", "--table"),
        ((), "USAGE", "--file"),
        (("--file", "one.csv", "--sequence", "1"), "USAGE", "--file"),
    ],
)
def test_a_wrong_question_is_told_the_nearest_right_one(
    fed: Counting, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], identity: str, told: str
) -> None:
    error = call(fed, capsys, *arguments, code=2)
    assert error["id"] == identity
    assert told in (error["remedy"] or "")


def test_a_region_that_never_ran_has_nothing_to_trace(fed: Counting) -> None:
    assert invoke(["trace", "word_count", "--file", "x", "--home", str(fed.workplace.home)]) == 2


def test_people_get_tables_and_spark_stays_out(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(fed.workplace.home)]
    assert invoke(["trace", "by_hand", "--sequence", "1", *home]) == 0
    text = capsys.readouterr().out
    assert "lake/kept: 3 rows of id 1" in text
    assert "one.csv" in text
    assert invoke(["trace", "by_hand", "--table", "last", "--where", "value=b", *home]) == 0
    assert "lake/last: 1 row" in capsys.readouterr().out
    assert pa.__name__ in sys.modules
