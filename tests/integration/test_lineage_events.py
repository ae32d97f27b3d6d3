"""OpenLineage events of real runs: every event obeys the published schemas, and says what the run did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from event_receiver import EventReceiver, receiver
from harness import done, run_once, settle
from otlp_requests import attributes, numbers, spans
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

__all__ = ["receiver"]

pytestmark = pytest.mark.spark

REGION = "told/orders"
FILES = {"1.csv": "ann,tea,2,1.5\nbob,bun,x,2.0\n", "2.csv": "ann,bun,1,-3.0\n"}


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


def chained(root: Path) -> Opened:
    """Open an application of two regions: the second one reads the table of the first one, and looks up prices."""
    with dm.application("chained") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(root / "inbox"), format="csv", schema="item string", settle=0))
        def sold(scanned: Any) -> Any:
            return scanned.drop("source_file")

        dm.sink(sold, dm.DeltaAppend("sold"))

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.TableSource("sold"))
        def again(scanned: Any) -> Any:
            return scanned

        prices = dm.lookup("prices", schema="item string, cents bigint")
        priced = dm.functor(
            lambda again, prices: dm.select(again.join(prices, "item", "left"), "item", "cents"),
            name="priced", inputs=[again, prices], vectorised=True,
        )  # fmt: skip
        dm.sink(priced, dm.DeltaAppend("priced"))
    return open_application(dm.build_application(declared))


def version_of(dataset: dict[str, Any]) -> int:
    return int(dataset["facets"]["version"]["datasetVersion"])


def test_a_table_that_is_read_has_the_version_that_its_writer_told_and_a_lookup_that_which_was_read(
    place: Workplace, receiver: EventReceiver, tmp_path: Path
) -> None:
    opened, lake = chained(tmp_path), place.home / "lake"
    for number, item in enumerate(("tea", "bun")):
        write(tmp_path, {f"{number}.csv": f"{item}\n" * (number + 1)})
        table = pa.table({"item": ["tea", "bun"], "cents": [100 + number, 200 + number]})
        write_deltalake(str(lake / "prices"), table, mode="overwrite")
        for region in ("chained/sold", "chained/again"):
            run_once(place, opened, region=region)
    writes = [each["outputs"][0] for each in receiver.of("COMPLETE", "/sold")]
    reads = [{each["name"]: each for each in event["inputs"]} for event in receiver.of("COMPLETE", "/again")]
    sold, prices = str(lake / "sold"), str(lake / "prices")
    assert [each["name"] for each in writes] == [sold, sold]
    assert [set(each) for each in reads] == [{sold, prices}] * 2
    assert [version_of(each[sold]) for each in reads] == [version_of(each) for each in writes]
    assert [each[sold]["inputFacets"]["inputStatistics"]["rowCount"] for each in reads] == [1, 2]
    assert [version_of(each[prices]) for each in reads] == [0, 1]
    assert {each[sold]["namespace"] for each in reads} == {each["namespace"] for each in writes}
    fields = receiver.of("COMPLETE", "/again")[0]["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert {origin["name"] for origin in fields["cents"]["inputFields"]} == {prices}


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


APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, n bigint", settle=0))
def rows(scanned):
    return scanned.drop("source_file")

dm.sink(rows, dm.DeltaAppend("all_rows"))
sums = dm.aggregate(rows, keys=["item"], values={"n": dm.sum("n")}, name="sums")
dm.sink(sums, dm.DeltaUpsert("sums", keys=["item"]))
"""


def test_a_whole_run_is_told_to_both_receivers_and_all_numbers_are_those_of_its_history(
    receiver: EventReceiver, tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`drainmark run` with traces, metrics and lineage; each group is in all three, with its ids and its rows."""
    assert engine.session is not None  # the command line finds this session
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\nhome = "home"\n')
    monkeypatch.chdir(tmp_path)
    for name in ("OPENLINEAGE_URL", "OTLP_URL"):
        monkeypatch.setenv(f"DRAINMARK_{name}", receiver.url)
    write(tmp_path, {f"{number}.csv": f"tea,{number}\nbun,1\n" * number for number in (1, 2, 3)})
    done("run", "app.py", "--max-group", "2")
    capsys.readouterr()
    done("history", "app", "--json")
    states = json.loads(capsys.readouterr().out)
    assert [(*each["group"], each["rows_in"]) for each in states] == [(1, 2, 2), (1, 2, 4), (3, 3, 6)]
    wanted = [(1, 2, 6), (3, 3, 6)]

    groups = [span for span in spans(receiver) if span.name == "group"]
    told = [attributes(span) for span in groups]
    ids = ("first_sequence_id", "last_sequence_id", "rows_in")
    assert [tuple(each[f"drainmark.{name}"] for name in ids) for each in told] == wanted
    for group in groups:
        parts = [span for span in spans(receiver) if span.parent_span_id == group.span_id]
        assert [span.name for span in parts] == ["process", "drain", "checkpoint", "publish"]
        for part in parts:
            assert group.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
            assert part.end_time_unix_nano <= group.end_time_unix_nano
    found = numbers(receiver)
    assert (found["region"], found["drainmark_committed_sequence_id"]) == ("app/rows", 3)
    assert (found["drainmark_groups_total"], found["drainmark_rows_in_total"]) == (2, 12)
    seconds = sum(each["process_seconds"] for each in states if each["sequence_id"] in (2, 3))
    assert found["drainmark_process_seconds_sum"] == pytest.approx(seconds)

    events = [facet(each, "drainmark_group") for each in receiver.of("COMPLETE")]
    assert [tuple(each[name] for name in ("firstSequenceId", "lastSequenceId", "rowsIn")) for each in events] == wanted
    assert len(receiver.of("START")) == len(groups)
