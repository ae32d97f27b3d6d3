"""OpenLineage events of real runs: every event obeys the published schemas, and says what the run did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from event_receiver import EventReceiver, receiving
from harness import run_once, settle
from staged_app import FILES as LINES
from staged_app import staged

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import OperatorFailed
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

REGION = "told/orders"
FILES = {"1.csv": "ann,tea,2,1.5\nbob,bun,x,2.0\n", "2.csv": "ann,bun,1,-3.0\n"}


@pytest.fixture
def receiver() -> Iterator[EventReceiver]:
    with receiving() as got:
        yield got


@pytest.fixture
def place(tmp_path: Path, receiver: EventReceiver, engine: SparkEngine) -> Iterator[Workplace]:
    told = {"openlineage_url": receiver.url, "openlineage_namespace": "shop"}
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, **told))
    place.use_engine(engine)
    yield place
    place.registry.close()


def application(root: Path) -> Opened:
    with dm.application("told") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path=str(root / "inbox"), format="csv", schema="who string, item string, n int, price double", settle=0
            )
        )  # fmt: skip
        def orders(scanned: Any) -> Any:
            return scanned.drop("source_file")

        @dm.functor
        def priced(orders: Any) -> Any:
            rows = dm.select(orders, "who", (F.col("n") * F.col("price")).alias("amount"))
            return rows.withColumn(
                "amount", F.when(F.col("who") == "eve", F.raise_error(F.lit("no eve"))).otherwise(F.col("amount"))
            )

        paid = dm.expect(priced, "amount > 0", on_fail="warn", name="paid")
        dm.sink(paid, dm.DeltaAppend("paid"))
        totals = dm.aggregate("paid", keys=["who"], values={"total": dm.sum("amount")}, name="totals")
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["who"]))
    return open_application(dm.build_application(declared))


def write(root: Path, files: dict[str, str]) -> None:
    (root / "inbox").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / "inbox" / name).write_text(text)
    settle(root / "inbox")


def facet(event: dict[str, Any], name: str) -> Any:
    return event["run"]["facets"][name]


def test_a_run_a_failure_and_a_rewind_are_told(place: Workplace, receiver: EventReceiver, tmp_path: Path) -> None:
    write(tmp_path, FILES)
    opened = application(tmp_path)
    run_once(place, opened)

    (start,), (end,) = receiver.of("START"), receiver.of("COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert start["eventTime"] < end["eventTime"]
    assert end["job"] == start["job"]
    assert (end["job"]["namespace"], end["job"]["name"]) == ("shop", REGION)
    told = {name: value for name, value in facet(end, "drainmark_group").items() if not name.startswith("_")}
    assert told == {
        "region": REGION, "epoch": 1, "firstSequenceId": 1, "lastSequenceId": 2, "rowsIn": 3, "rowsQuarantined": 1,
        "replaced": {},
    }  # fmt: skip

    (read,) = end["inputs"]
    inbox = str(tmp_path / "inbox")
    assert (read["namespace"], read["name"]) == ("file", inbox)
    sizes = sum(len(text) for text in FILES.values())
    statistics = {name: read["inputFacets"]["inputStatistics"][name] for name in ("rowCount", "size", "fileCount")}
    assert statistics == {"rowCount": 3, "size": sizes, "fileCount": 2}
    (judged,) = read["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (judged["name"], judged["success"], judged["actual"], judged["content"]) == (
        "paid",
        False,
        "1",
        "amount > 0",
    )

    lake = place.home / "lake"
    outputs = {Path(each["name"]).name: each for each in end["outputs"]}
    assert {Path(each["name"]).parent for each in end["outputs"]} == {lake}
    assert set(outputs) == {"paid", "totals", "told_quarantine"}
    counts = {name: each["outputFacets"]["outputStatistics"]["rowCount"] for name, each in outputs.items()}
    assert counts == {"paid": 2, "totals": 2, "told_quarantine": 1}, "a key of totals changed twice"
    versions = {name: int(each["facets"]["version"]["datasetVersion"]) for name, each in outputs.items()}
    assert versions == {name: DeltaTable(str(lake / name)).version() for name in outputs}

    def origins(table: str, column: str) -> dict[str, str]:
        found = outputs[table]["facets"]["columnLineage"]["fields"][column]["inputFields"]
        assert {(each["namespace"], each["name"]) for each in found} == {("file", inbox)}
        return {each["field"]: each["transformations"][0]["subtype"] for each in found}

    assert origins("paid", "who") == {"who": "IDENTITY"}
    assert origins("paid", "amount").keys() >= {"n", "price"}
    assert set(origins("paid", "amount").values()) == {"TRANSFORMATION"}
    assert set(origins("totals", "total").values()) == {"AGGREGATION"}
    assert "columnLineage" not in outputs["told_quarantine"]["facets"]

    write(tmp_path, {"3.csv": "eve,tea,1,1.0\n"})
    with pytest.raises(OperatorFailed):
        run_once(place, opened)
    (failed,) = receiver.of("FAIL")
    assert failed["run"]["runId"] == receiver.of("START")[-1]["run"]["runId"]
    assert "no eve" in facet(failed, "errorMessage")["message"]
    assert failed["eventTime"] > receiver.of("START")[-1]["eventTime"]
    assert len(receiver.of("COMPLETE")) == 1

    interventions.reset(place, plan_reset(place, REGION, RewindTarget(to=1)))
    (event,) = receiver.of("COMPLETE", ".rewind")
    withdrawn = facet(event, "drainmark_rewind")
    assert (withdrawn["to"], withdrawn["withdrawn"]) == (1, [[2, 2]])
    assert {Path(each["name"]).name for each in event["outputs"]} == set(outputs)
    assert event["run"]["runId"] != end["run"]["runId"]


def test_the_run_is_green_while_no_receiver_is_there(
    place: Workplace, receiver: EventReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.settings = place.settings.model_copy(update={"openlineage_url": "http://127.0.0.1:9"})
    write(tmp_path, FILES)
    opened = application(tmp_path)
    assert [report.last_id for report in run_once(place, opened, max_group=1)] == [1, 2]
    (told,) = [each for each in caplog.messages if "OpenLineage" in each]
    assert "2 are lost; what is above id 0 is sent by the next run" in told
    place.settings = place.settings.model_copy(update={"openlineage_url": receiver.url})
    run_once(place, opened)
    ends = receiver.of("COMPLETE")
    assert [facet(each, "drainmark_group")["lastSequenceId"] for each in ends] == [1, 2]
    fields = ends[0]["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert fields["who"]["inputFields"], json.dumps(fields)


@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
def test_stages_end_every_run_that_they_begin_and_tell_all_rows(
    run_app: Callable[..., Result], receiver: EventReceiver, alignment: str
) -> None:
    """A commit joins groups, and unaligned stages finish committed groups later."""
    told = {"openlineage_url": receiver.url}
    result = run_app(staged(interval=0.2, alignment=alignment), LINES, max_group=1, settings=told)
    ends = receiver.of("COMPLETE")
    assert {each["run"]["runId"] for each in receiver.of("START")} <= {each["run"]["runId"] for each in ends}
    assert (receiver.of("FAIL"), receiver.of("ABORT")) == ([], [])
    rows: dict[str, int] = {}
    for end in ends:
        for output in end["outputs"]:
            name = Path(output["name"]).name
            rows[name] = rows.get(name, 0) + output["outputFacets"]["outputStatistics"]["rowCount"]
    tables = {"count_changes", "numbered_words", "long_words"}
    assert {name: rows[name] for name in tables} == {name: len(result.sink(name)) for name in tables}
    columns = next(each for end in ends for each in end["outputs"] if each["name"].endswith("/long_words"))["facets"]
    (origin,) = columns["columnLineage"]["fields"]["word"]["inputFields"]
    assert origin["field"] == "value"
