"""The probe: two triggers together must give the same as two triggers apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from harness import run_once, settle

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import NotRowWise, OperatorFailed
from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.graph.params import bind_params
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.probe.row_wise_probe import SAMPLE_CALLS, changed_functions, probe, probe_if_changed
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Opened, Workplace

pytestmark = pytest.mark.spark

Declare = Callable[[Any], Any]
FILES = ("ann,1\nbob,2\nann,3\n", "ann,4\ncy,5\n")


class Bench:
    """An application on two files, analysed: the objects that the CLI has when it calls the probe."""

    def __init__(self, workplace: Workplace, folder: Path) -> None:
        self.workplace, self.inbox = workplace, folder / "inbox"
        self.scan: dict[str, Any] = {}

    def files(self, *contents: str) -> None:
        self.inbox.mkdir(exist_ok=True)
        for number, content in enumerate(contents):
            (self.inbox / f"{number}.csv").write_text(content)
        settle(self.inbox)

    def opened(self, declare: Declare, read: Declare = lambda scanned: scanned) -> Opened:
        with dm.application("probed") as declared:
            scan = dm.DirectoryScan(
                path=str(self.inbox), format="csv", schema="user string, n bigint", settle=0, **self.scan
            )

            @dm.consistent(trigger="operator-driven")
            @dm.source(scan)
            def events(scanned: Any) -> Any:
                return read(scanned)

            dm.sink(declare(events), dm.DeltaAppend("out"))
        application = dm.build_application(declared)
        return Opened(
            reference="probed",
            plan=compile_application(application),
            params=bind_params(application.params_class, {}),
        )

    def analysed(self, declare: Declare, read: Declare = lambda scanned: scanned) -> tuple[Blueprint, Outside]:
        opened = self.opened(declare, read)
        scan_region(self.workplace, opened.region())
        run = region_run(self.workplace, opened, opened.region())
        return run.blueprint, run.owner.outside

    def probed(self, declare: Declare, read: Declare = lambda scanned: scanned) -> tuple[str, ...]:
        blueprint, outside = self.analysed(declare, read)
        return probe(blueprint, outside, self.workplace.registry.triggers.pending("probed/events", 2))

    def probe_if_changed(self, declare: Declare) -> bool:
        return probe_if_changed(*self.analysed(declare))


@pytest.fixture
def bench(workplace: Workplace, tmp_path: Path) -> Bench:
    bench = Bench(workplace, tmp_path)
    bench.files(*FILES)
    return bench


def upper(events: Any) -> Any:
    return dm.select(events, F.upper("user").alias("user"), "n", "source_file")


def no_duplicates(events: Any) -> Any:
    return events.dropDuplicates(["user"])


def test_row_wise_functions_pass_and_nothing_is_left_behind(bench: Bench) -> None:
    assert bench.probed(lambda events: dm.functor(upper, inputs=[events])) == ("events", "upper")
    assert not list((bench.workplace.home / "inbox").rglob("*.data"))
    assert not bench.workplace.known_regions(), "a probe commits nothing"


def test_rescued_columns_are_there_when_functions_are_tried(bench: Bench) -> None:
    bench.files("n,more,user\n1,x,ann\n", "user,n\ncy,5\n")
    bench.scan = {"options": {"header": "true"}, "on_schema": "rescue"}

    def more(events: Any) -> Any:
        return dm.select(events, "user", "n", F.get_json_object("_rescued", "$.more").alias("more"))

    assert bench.probed(lambda events: dm.functor(more, inputs=[events])) == ("events", "more")


@pytest.mark.slow
def test_functions_behind_an_operator_of_several_outputs_are_tried(bench: Bench) -> None:
    """Each function reads only one of the operator's outputs."""

    def declare(events: Any) -> Any:
        parts = dm.split(events, outputs={"high": "n > 2"}, otherwise="low", name="parts")
        high = dm.functor(upper, name="high", inputs=[parts["high"]])
        low = dm.functor(upper, name="low", inputs=[parts["low"]])
        return dm.union(high, low)

    assert bench.probed(declare) == ("events", "high", "low")

    def windowed(events: Any) -> Any:
        timed = dm.functor(lambda events: events.withColumn("at", F.timestamp_seconds("n")), name="t", inputs=[events])
        closed = dm.aggregate(timed, name="w", keys=["user"], values={"rows": dm.count()}, emit="closed", lateness=0,
                              window=dm.tumbling("at", seconds=1))  # fmt: skip
        late = dm.functor(lambda late: late, name="late_ones", inputs=[closed["late"]])
        dm.sink(dm.functor(lambda w: w, name="closed_ones", inputs=[closed]), dm.DeltaAppend("closed"))
        return late

    assert set(bench.probed(windowed)) == {"events", "t", "closed_ones", "late_ones"}


def test_a_text_that_is_no_utf8_is_compared_as_any_other(bench: Bench) -> None:
    """An operator behind it may put the text into quarantine."""
    assert bench.probed(lambda events: dm.functor(
        lambda events: dm.select(events, F.unhex(F.lit("ff")).cast("string").alias("t")), name="broken", inputs=[events]
    )) == ("events", "broken")  # fmt: skip


def test_the_authors_word_is_tried_and_a_sample_row_shown(bench: Bench) -> None:
    with pytest.raises(NotRowWise) as caught:
        bench.probed(lambda events: dm.functor(no_duplicates, inputs=[events], vectorised=True))
    error = caught.value
    assert error.operator == "no_duplicates"
    assert error.location is not None
    assert error.location.file == __file__
    assert error.location.line == no_duplicates.__code__.co_firstlineno
    assert "ann" in error.facts["sample"]
    assert error.facts["side"] == "apart"
    assert "per_trigger" in (error.remedy or "")


def test_the_function_of_a_source_is_walked_like_any_other(bench: Bench) -> None:
    blueprint, _ = bench.analysed(lambda events: dm.functor(upper, inputs=[events]), read=no_duplicates)
    assert set(blueprint.forced_single) == {"events"}
    assert "Deduplicate" in blueprint.forced_single["events"]


def test_a_statement_whose_author_says_it_vectorises_is_tried(bench: Bench, tmp_path: Path) -> None:
    statement = tmp_path / "sql" / "probed" / "newest.sql"
    statement.parent.mkdir(parents=True)
    statement.write_text("select max(_sequence_id) as _sequence_id, user, sum(n) as n from {events} group by user")
    with pytest.raises(NotRowWise) as caught:
        bench.probed(lambda events: dm.sql("newest", inputs=[events], vectorised=True))
    assert caught.value.operator == "newest"


def test_what_runs_in_groups_of_one_is_not_tried_and_feeds_the_next_one_trigger_at_a_time(bench: Bench) -> None:
    def declare(events: Any) -> Any:
        smallest = dm.per_trigger(lambda events: events.orderBy("n").limit(1), name="smallest", inputs=[events])
        deduplicated = dm.functor(no_duplicates, inputs=[smallest])
        return dm.functor(upper, inputs=[deduplicated])

    assert bench.probed(declare) == ("events", "upper")


def test_functions_behind_an_aggregate_are_judged_on_the_rows_it_gives(bench: Bench) -> None:
    def declare(events: Any) -> Any:
        totals = dm.aggregate(events, name="totals", keys=["user"], values={"n": dm.sum("n"), "mean": dm.mean("n")})
        return dm.functor(lambda totals: totals.where("n > 1"), name="large", inputs=[totals])

    assert bench.probed(declare) == ("events", "large")


def test_a_function_that_differs_from_call_to_call_is_not_blamed(bench: Bench) -> None:
    calls = itertools.count()

    def numbered(events: Any) -> Any:
        return events.withColumn("call", F.lit(next(calls)))

    assert "numbered" in bench.probed(lambda events: dm.functor(numbered, inputs=[events]))


def test_a_function_that_raises_is_named_at_a_dry_run_and_left_to_the_run_otherwise(bench: Bench) -> None:
    def broken(events: Any) -> Any:
        return dm.select(events, F.raise_error(F.lit("no")).cast("string").alias("oh"))

    with pytest.raises(OperatorFailed) as caught:
        bench.probed(lambda events: dm.functor(broken, inputs=[events]))
    assert caught.value.operator == "broken"
    assert not bench.probe_if_changed(lambda events: dm.functor(broken, inputs=[events]))


@pytest.mark.parametrize(
    "files", [(FILES[0],), (FILES[0], ""), (FILES[0], "x,y,z\nnonsense,a,b\n")], ids=["one", "empty", "bad"]
)
def test_what_shows_nothing_is_not_noted(files: tuple[str, ...], workplace: Workplace, tmp_path: Path) -> None:
    bench = Bench(workplace, tmp_path)
    bench.files(*files)
    assert not bench.probe_if_changed(lambda events: dm.functor(upper, inputs=[events]))
    assert workplace.registry.progress.get_probed("probed/events") == {}


def test_a_function_is_tried_at_first_use_and_again_only_when_it_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def declare(events: Any) -> Any:
        return dm.functor(upper, name="changing", inputs=[events])

    def other(events: Any) -> Any:
        return dm.functor(lambda events: dm.select(events, "user"), name="changing", inputs=[events])

    assert bench.probe_if_changed(declare)
    blueprint, outside = bench.analysed(declare)
    probed = bench.workplace.registry.progress.get_probed("probed/events")
    assert changed_functions(blueprint, probed, outside.statement) == ()
    monkeypatch.setattr("drainmark.jobs.runtime.probe.row_wise_probe.probe", lambda *_: pytest.fail("nothing changed"))
    assert not bench.probe_if_changed(declare)
    monkeypatch.undo()
    blueprint, outside = bench.analysed(other)
    assert [operator.name for operator in changed_functions(blueprint, probed, outside.statement)] == ["changing"]
    assert bench.probe_if_changed(other)
    run_once(bench.workplace, bench.opened(other))
    assert not bench.probe_if_changed(declare), "nothing is pending any more"


class Totals(dm.StateHandler):
    """An operator that numbers its rows; `reset` reads the type that `checkpoint` wrote, unless a test sets another."""

    made: ClassVar[list[Totals]] = []
    reads: ClassVar[type] = int

    def __init__(self) -> None:
        self.n = 0
        self.ids: list[int] = []
        self.made.append(self)

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        self.ids.append(context.sequence_id)
        first, self.n = self.n, self.n + rows.num_rows
        return pa.table({"user": rows["user"], "n": pa.array(range(first, self.n), pa.int64())})

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        checkpoint.write(self.n)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.n = checkpoint.read(self.reads)

    def reset_to_initial_state(self) -> None:
        self.n = 0


class Forgetful(Totals):
    reads = str


def numbered_by(kind: type[dm.StateHandler]) -> Declare:
    return lambda events: dm.operator(kind, output="user string, n bigint", name="totals", inputs=[events])


def test_a_handler_is_tried_with_a_state_that_is_thrown_away(bench: Bench) -> None:
    """V120: the probe has one object, the run has another; no store or table holds anything of the first."""
    Totals.made.clear()
    assert bench.probe_if_changed(numbered_by(Totals))
    (tried,) = Totals.made
    assert tried.ids == [1, 2]
    assert tried.n == 5
    assert "totals" in bench.workplace.registry.progress.get_probed("probed/events")
    run_once(bench.workplace, bench.opened(numbered_by(Totals)))
    assert len(Totals.made) == 2
    assert Totals.made[1].ids == [1, 2]
    assert not bench.probe_if_changed(numbered_by(Totals))


def test_a_handler_that_does_not_read_what_it_wrote_is_told_before_the_claim(bench: Bench) -> None:
    with pytest.raises(CheckpointUnreadable):
        bench.probe_if_changed(numbered_by(Forgetful))
    assert bench.workplace.registry.progress.get_probed("probed/events") == {}


@pytest.mark.slow
def test_what_follows_a_handler_is_judged_on_the_rows_that_it_gives(bench: Bench) -> None:
    def no_numbers(totals: Any) -> Any:
        return dm.select(totals, "user").dropDuplicates(["user"]).withColumn("_sequence_id", F.lit(1).cast("bigint"))

    with pytest.raises(NotRowWise) as caught:
        bench.probed(lambda events: dm.functor(no_numbers, inputs=[numbered_by(Totals)(events)], vectorised=True))
    assert caught.value.operator == "no_numbers"


def test_a_parallel_map_is_called_with_a_few_rows_of_each_file(workplace: Workplace, tmp_path: Path) -> None:
    """It may be slow, or cost money. The positions of its rows are those of their file, together and apart."""
    bench = Bench(workplace, tmp_path)
    bench.files(*("".join(f"a,{n}\n" for n in range(500)) for _ in range(2)))
    calls: list[int] = []

    def doubled(row: Any) -> Any:
        calls.append(row["n"])
        return {"n": row["n"] * 2}

    assert bench.probe_if_changed(lambda events: dm.parallel_map(doubled, output="n bigint", inputs=[events]))
    assert "doubled" in workplace.registry.progress.get_probed("probed/events")
    assert sorted(calls) == sorted([*range(SAMPLE_CALLS)] * 4), "of each file, together and apart"
