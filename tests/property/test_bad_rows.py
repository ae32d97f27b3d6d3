"""Rows that operators cannot read are quarantined, or halt the region; unfit streams are refused (I11, V141)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once
from operator_cases import CASES, streams
from triggers import add_file, content, home, opened

import drainmark as dm
from drainmark.jobs.errors import BadInput, DrainmarkError, Halted, OperatorFailed
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

FILES = 5


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    for number in range(FILES):
        add_file(tmp_path / "inbox", number)
    return tmp_path / "inbox"


def text_of(on_bad: str) -> Callable[[Any], Any]:
    def declared(events: Any) -> None:
        text = "if(n = 0, null, if(n = 1, 'x', concat(n, '')))"
        made = dm.functor(
            lambda rows: rows.selectExpr("_sequence_id", "_position", f"{text} as text"), name="made", inputs=[events]
        )
        parsed = dm.parse(made, "text", format="csv", schema="n bigint", on_bad=on_bad, name="parsed")
        dm.sink(parsed, dm.DeltaAppend("parsed_out"))

    return declared


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), FILES])
def test_bad_rows_go_to_the_quarantine_of_the_region(
    tmp_path: Path, inbox: Path, engine: SparkEngine, size: int
) -> None:
    """Every row is in the sink or in the quarantine, with its place in the stream, whatever the grouping."""
    with home(tmp_path / "home", engine) as place:
        run_once(place, opened("texts", inbox, text_of("quarantine")), max_group=size)
        found = rows(place, "texts/events", "texts_quarantine")
    wanted = [
        (number + 1, index, "x" if row["n"] == 1 else "")
        for number in range(FILES)
        for index, row in enumerate(content(number), 1)
        if row["n"] in (None, 0, 1)
    ]
    assert wanted
    assert sorted((row["_sequence_id"], row["position"], row["raw"]) for row in found) == wanted
    assert {row["source_file"].rpartition("/")[2] for row in found} <= {path.name for path in inbox.iterdir()}


def test_a_bad_row_halts_where_it_shall(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    with home(tmp_path / "home", engine) as place:
        application = opened("texts", inbox, text_of("halt"))
        with pytest.raises((BadInput, Halted)) as halted:
            run_once(place, application)
        assert "parsed" in str(halted.value)
        halt = place.history("texts/events").halt
        assert halt is not None


@pytest.mark.seed("V141")
def test_half_a_stream_is_bad_and_only_its_row(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    """A value is one whole compressed stream, or nothing."""
    case = next(case for case in CASES if case.name == "decompress_gzip")

    def declared(events: Any) -> None:
        dm.sink(case.declare(streams(events), "unpacked"), dm.DeltaAppend("unpacked_out"))

    with home(tmp_path / "home", engine) as place:
        run_once(place, opened("packed", inbox, declared))
        found = rows(place, "packed/events", "packed_quarantine")
    halves = [row for number in range(FILES) for row in content(number) if row["n"] == 1]
    assert len(found) == len(halves) > 0
    assert all("gzip" in row["reason"] for row in found)


UNFIT: dict[str, Callable[[Any], Any]] = {
    "union": lambda s: dm.union(s.left, s.right),
    "barrier": lambda s: dm.barrier(s.events, dm.functor(lambda rows: rows, name="again", inputs=[s.events])),
    "join": lambda s: dm.join(s.left, dm.functor(lambda rows: rows, name="again", inputs=[s.left]), on=["user"],
                              left_window=1),
    "sort": lambda s: dm.sort(s.events, by=["nothing"]),
    "deduplicate": lambda s: dm.deduplicate(s.events, keys=["nothing"]),
    "dynamic_filter": lambda s: dm.dynamic_filter(s.events, s.left, on=["n"]),
    "parse": lambda s: dm.parse(s.events, "user", format="json", schema="n bigint"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_streams_that_do_not_fit_are_refused_before_anything_is_claimed(
    tmp_path: Path, inbox: Path, engine: SparkEngine, name: str
) -> None:
    """The error names the operator, the columns and the remedy; no state exists."""

    def declared(events: Any) -> None:
        dm.sink(UNFIT[name](streams(events)), dm.DeltaAppend("unfit"))

    with home(tmp_path / "home", engine) as place:
        with pytest.raises(OperatorFailed) as failed:
            run_once(place, opened("unfit", inbox, declared))
        assert isinstance(failed.value, DrainmarkError)
        assert failed.value.remedy
        assert place.history("unfit/events").epoch == 0


def test_a_throttle_changes_nothing_but_when(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    def declared(rate: float) -> Callable[[Any], None]:
        return lambda events: dm.sink(dm.throttle(events, rate, name="slow"), dm.DeltaAppend("slow_out")) and None

    fingerprints = set()
    for rate in (1e9, 1000.0):
        with home(tmp_path / f"home{rate:g}", engine) as place:
            application = opened("slow", inbox, declared(rate))
            fingerprints.add(application.region(None).fingerprint)
            reports = run_once(place, application, max_group=1)
            assert [report.rows_in for report in reports] == [len(content(number)) for number in range(FILES)]
    assert len(fingerprints) == 1, "the rate is no part of what the region computes"


def test_a_dynamic_filter_closes_a_loop(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    """V21, V94: rows that it lets through may name rows to let through next, one trigger later."""
    for number in range(FILES, 10):
        add_file(inbox, number)

    def declared(events: Any) -> None:
        first = dm.functor(
            lambda events: events.where("n = 5").select("_sequence_id", "user"), name="first", inputs=[events]
        )
        kept = dm.dynamic_filter(events, first, on=["user"], remove="spent", name="kept")
        dm.functor(lambda kept: kept.where("n = 3").select("_sequence_id", "user"), name="spent", inputs=[kept])
        dm.sink(kept, dm.DeltaAppend("kept_out"))

    through: set[Any] = set()
    wanted = []
    for number in range(10):
        mine = [row for row in content(number) if row["user"] in through]
        wanted.append(len(mine))
        through |= {row["user"] for row in content(number) if row["n"] == 5}
        through -= {row["user"] for row in mine if row["n"] == 3}
    with home(tmp_path / "home", engine) as place:
        reports = run_once(place, opened("looped", inbox, declared), max_group=4)
        assert {report.triggers for report in reports} == {1}
        ids = [row["_sequence_id"] for row in rows(place, "looped/events", "kept_out")]
    assert [ids.count(number + 1) for number in range(10)] == wanted
    assert sum(wanted) > 0
