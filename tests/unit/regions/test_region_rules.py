"""For every rule, the smallest graph that breaks it; the graph must break no other rule."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from change_stream import Marked
from shapes import (
    OPERATOR_DRIVEN,
    PERIODIC,
    Beacon,
    Counter,
    Custom,
    Dimension,
    FileSink,
    Functor,
    Gate,
    Scanner,
    Socket,
    TableSource,
    Threaded,
    app,
    buffered,
    connected,
    control,
    figure_1c,
    instance,
    made,
    outside,
)

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, Location, Violation
from drainmark.jobs.graph.annotations import Buffered
from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators import catalogue
from drainmark.jobs.operators.deduplicate import Deduplicate
from drainmark.jobs.operators.row_wise.functor import Functor as RealFunctor
from drainmark.jobs.operators.sinks.delta_append import DeltaAppendSink
from drainmark.jobs.operators.throttle import Throttle
from drainmark.jobs.regions.merging import draft_of
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.regions.rules import RULES
from drainmark.jobs.regions.rules.annotations import start_kind, unsupported_in_region

HERE = Location("figures.py", 3)


def start(name: str = "start", **fields: Any) -> Any:
    return made(Beacon, name, **{"consistent": OPERATOR_DRIVEN, **fields})


def declared(**parameters: Any) -> Application:
    """Return a start with these parameters."""
    return app(start(consistent=replace(OPERATOR_DRIVEN, **parameters)))


def periodic(**parameters: Any) -> Application:
    return app(start(consistent=replace(PERIODIC, **parameters)))


def scanning(first: tuple[str, ...], second: tuple[str, ...]) -> Application:
    """Return an application with two starts of one region, given the folders that they scan."""
    scanners = [
        made(Scanner, name, folders=folders, consistent=PERIODIC) for name, folders in (("a", first), ("b", second))
    ]
    return app(*scanners, made(Functor, "f", "a", "b"))


def dm_declared(declare: Any, *streams: str) -> Operator:
    """Return the operator that a function of the facade declares."""
    with dm.application("app") as declarations:
        declare(*streams, address="localhost:1")
    return declarations.operators[0]


def mapped_by_rdd(rows: Any) -> Any:
    return rows.rdd.map(len).toDF()


def read_by_name(rows: Any) -> Any:
    rows.createOrReplaceTempView("rows_read")
    return rows.sparkSession.table("rows_read")


def calls_another(rows: Any) -> Any:
    return mapped_by_rdd(rows)


def functor(name: str, function: Any) -> Operator:
    called = UserFunction(function=function, streams=("start",))
    return RealFunctor(name=name, inputs=(Input(upstream="start"),), location=Location("rdd.py", 3), function=called)


def violations_of(application: Application) -> tuple[Violation, ...]:
    with pytest.raises(DeclarationError) as refused:
        compile_application(application)
    return refused.value.violations


BROKEN = {
    "BAD_APPLICATION_NAME": [app(start(), name="my-app"), app(start(), name="")],
    "BAD_NAME": [app(start("a__b")), app(start("_a")), app(start("a b")), app(start("é")), app(start("a" * 101))],
    "BAD_COLUMN": [app(start(), made(Deduplicate, "once", "start", keys=("k", 1)))],
    "DUPLICATE_NAME": [app(start(), made(Functor, "twice", "start"), made(Functor, "twice", "start", line=9))],
    "UNKNOWN_UPSTREAM": [app(start(), made(Functor, "f", "strat"))],
    "UNKNOWN_OUTPUT": [
        app(start(several=("orders", "payments")), made(Functor, "f", "start__ordres")),
        app(start(several=("orders", "payments")), made(Functor, "f", "start")),
        app(start(), made(Functor, "f", "start__orders")),
        app(start(), made(Custom, "sink", "start"), made(Functor, "f", "sink")),
    ],
    "NO_INPUT": [app(start(), made(Functor, "f"))],
    "CYCLE_NOT_ON_CONTROL_PORT": [
        app(start(), made(Functor, "a", "start", "b"), made(Functor, "b", "a")),
        app(start(), made(Functor, "a", "start", "a")),
        app(made(Functor, "a", "b"), made(Functor, "b", "a")),
    ],
    "LOOP_THROUGH_START": [
        app(made(Beacon, "start", control("f"), consistent=OPERATOR_DRIVEN), made(Functor, "f", "start"))
    ],
    "MIXED_PORT": [
        app(start(), made(Dimension, "d"), made(Functor, "f", "start:data", "d:data")),
        app(start(), made(Functor, "f", "start:data", control("start:data"))),
    ],
    "AUTONOMOUS_PORT_FED_BY_REGION": [app(start(), made(Functor, "f", outside("start")))],
    "CHANGES": [
        app(start(), made(Marked, "m", "start", gone="g"), made(Counter, "f", "m")),
        app(start(), made(Marked, "m", "start", gone="g"), made(Counter, "f", control("m"), "start")),
        app(start(), made(Marked, "m", "start", gone="g"), made(Custom, "f", "m", autonomous=True)),
        app(
            start(),
            made(Marked, "m", "start", gone="g"),
            made(Throttle, "t", "m", rows_per_second=1),
            made(Counter, "f", "t"),
        ),
        *(
            app(
                start(),
                made(Marked, "m", "start", gone="g"),
                target.operator(name="f", inputs=(connected("m"),)),
            )
            for target in (
                dm.DeltaAppend("t"),
                dm.DeltaOverwrite("t"),
                dm.DatabaseAppend("d", "t"),
                dm.FileSink("f", format="csv"),
            )
        ),
    ],
    "CONTROL_PORTS_ONLY": [app(start(), made(Functor, "f", control("start")))],
    "TRIGGER_UNKNOWN": [declared(trigger="perodic")],
    "PERIOD_MISSING": [periodic(period=None)],
    "PERIOD_FORBIDDEN": [declared(period=dt.timedelta(seconds=1))],
    "NONPOSITIVE_TIMEOUT": [
        periodic(period=dt.timedelta(seconds=-1)),
        declared(group_timeout=dt.timedelta(seconds=-1)),
        declared(reset_timeout="5 s"),
        declared(alignment_timeout=dt.timedelta(0)),
    ],
    "NEGATIVE_LIMIT": [
        declared(max_consecutive_reset_attempts=-1),
        declared(rewind_horizon=1.5),
        declared(rewind_horizon=True),
    ],
    "RUNS_UNKNOWN": [declared(runs="per-trigger")],
    "LINGER_INVALID": [
        declared(linger=dt.timedelta(seconds=-1)),
        declared(linger="1m"),
        declared(linger=dt.timedelta(seconds=9), runs="per_trigger"),
    ],
    "CHECKPOINTS_UNKNOWN": [declared(checkpoints="nonblocking")],
    "ALIGNMENT_UNKNOWN": [declared(alignment="overtaking")],
    "ALIGNMENT_TIMEOUT_FORBIDDEN": [declared(alignment="unaligned", alignment_timeout=dt.timedelta(seconds=3))],
    "CHANNELS_UNKNOWN": [declared(channels="disk")],
    "INFLIGHT_BOUND": [declared(max_inflight_bytes="256 QB"), declared(max_inflight_bytes=0)],
    "CHECKPOINT_INTERVAL_INVALID": [
        declared(checkpoint_interval=dt.timedelta(seconds=-1)),
        declared(checkpoint_interval="1 min"),
    ],
    "SCHEDULE_FORBIDDEN": [periodic(schedule="@daily")],
    "SCHEDULE_MALFORMED": [declared(schedule="daily"), declared(schedule="* * * *")],
    "THREAD_WITHOUT_RUN": [
        *(
            app(made(Threaded, "t", consistent=replace(OPERATOR_DRIVEN, **parameters)))
            for parameters in ({"runs": "per_trigger"}, {"schedule": "@daily"}, {"linger": dt.timedelta(0)})
        ),
        app(
            made(Threaded, "t", consistent=replace(PERIODIC, linger=dt.timedelta(0))),
            start("b", consistent=replace(PERIODIC, linger=dt.timedelta(0))),
            made(Functor, "f", "t", "b"),
        ),
    ],
    "BOTH_ANNOTATIONS": [app(start(autonomous=True))],
    "COMPOSITE_WITHOUT_START": [app(start(), composites=(instance("pair", autonomous=True),))],
    "START_KIND": [
        app(start(), made(Functor, "f", "start", consistent=OPERATOR_DRIVEN)),
        app(start(), made(Custom, "s", "start", consistent=OPERATOR_DRIVEN)),
        app(made(Dimension, "d", consistent=OPERATOR_DRIVEN)),
    ],
    "UNSUPPORTED_IN_REGION": [
        app(start(), made(Gate, "g", "start")),
        app(made(Gate, "g", "d", consistent=OPERATOR_DRIVEN), made(Dimension, "d")),
        app(made(Socket, "s", consistent=OPERATOR_DRIVEN)),
        app(start(), dm_declared(dm.udp_sink, "start")),
        app(start(), dm_declared(dm.switch, "start")),
    ],
    "UNSUPPORTED_OPERATOR": [
        app(start(), made(Socket, "s"), made(Functor, "f", "start", "s")),
        *(app(start(), dm_declared(declare)) for declare in (dm.tcp_source, dm.udp_source)),
        *(app(made(Beacon, "b"), dm_declared(declare, "b")) for declare in (dm.gate, dm.switch)),
        *(app(made(Beacon, "b"), dm_declared(declare, "b")) for declare in (dm.tcp_sink, dm.udp_sink)),
    ],
    "SECOND_START_IN_OPERATOR_DRIVEN": [
        app(start("a"), start("b"), made(Functor, "f", "a", "b")),
        app(start("a", consistent=PERIODIC), start("b"), made(Functor, "f", "a", "b")),
    ],
    "MERGED_PARAMETERS_DIFFER": [
        app(
            start("a", consistent=PERIODIC),
            start("b", consistent=replace(PERIODIC, **differing)),
            made(Functor, "f", "a", "b"),
        )
        for differing in (
            {"runs": "per_trigger"},
            {"checkpoints": "blocking"},
            {"alignment": "unaligned"},
            {"channels": "durable"},
            {"alignment_timeout": dt.timedelta(seconds=5)},
            {"checkpoint_interval": dt.timedelta(seconds=5)},
            {"linger": dt.timedelta(seconds=5)},  # the other start uses the setting, which only a run knows
        )
    ],
    "TWO_SCANNERS_OF_A_FOLDER": [
        scanning(("inbox",), ("inbox",)),
        scanning(("inbox", "inbox/*"), ("inbox/a/b",)),
        scanning(("inbox/[0-5]",), ("inbox/[4-9]",)),
        scanning(("inbox/?",), ("other", "inbox/[!a]")),
    ],
    "TWO_WRITERS_OF_A_TABLE": [
        app(start(), made(Custom, "a", "start", table="t"), made(Custom, "b", "start", table="t")),
        app(start(), made(Custom, "a", "start", table="t"), made(Custom, "b", "start", table="T")),
    ],
    "TABLE_INSIDE_TABLE": [
        app(start(), made(Custom, "a", "start", table="t"), made(Custom, "b", "start", table="t/u"))
    ],
    "TWO_TABLES_OF_A_NAME": [
        app(
            start(),
            made(DeltaAppendSink, "a", "start", table="a/b", register="spark_catalog"),
            made(DeltaAppendSink, "b", "start", table="A-b", register="spark_catalog"),
        )
    ],
    "RESERVED_TABLE": [app(start(), made(Custom, "a", "start", table="app_quarantine"))],
    "LOOKUP_OF_OWN_TABLE": [
        app(
            start(),
            made(Dimension, "known", table="seen"),
            made(Functor, "f", "start", "known"),
            made(Custom, "a", "f", table="Seen"),
        ),
        app(
            start(),
            made(Dimension, "known", table="seen"),
            made(Functor, "clean", "known"),
            made(Functor, "f", "start", "clean"),
            made(Custom, "a", "f", table="seen"),
        ),
    ],
    "IMPORT_OF_OWN_TABLE": [
        app(
            made(TableSource, "orders", table="Orders", consistent=OPERATOR_DRIVEN),
            made(Custom, "a", "orders", table="orders"),
        )
    ],
    "CLASSIC_ONLY": [
        app(start(), functor("f", mapped_by_rdd)),
        app(start(), functor("f", calls_another)),
        app(start(), functor("f", read_by_name)),
    ],
    "BUFFERED_OUTSIDE_REGION": [
        app(start(), made(Dimension, "d"), made(Functor, "f", "start", buffered("d"))),
        app(start(), made(Functor, "f", buffered("start"), autonomous=True)),
        app(made(Beacon, "b"), made(Functor, "f", buffered("b"))),
        app(start("a"), made(Beacon, "b", buffered("a"), consistent=OPERATOR_DRIVEN)),  # two regions in a chain (E4)
    ],
    "BUFFERED_CONTROL_PORT": [
        app(
            start(),
            made(Functor, "a", "start"),
            made(Functor, "f", "start", replace(control("a"), buffered=Buffered())),
        )
    ],
    "UNBUFFERED_WAY_AROUND": [
        app(start(), made(Functor, "f", buffered("start:x"), "start:y")),
        app(start(), made(Functor, "f", "start"), made(Functor, "g", buffered("start"), "f")),
        app(start(), made(Dimension, "d"), made(Functor, "f", "start", "d"), made(Functor, "g", buffered("f"), "d")),
        app(start(), made(Functor, "f", "start", control("g")), made(Functor, "g", buffered("f"))),
    ],
    "CYCLE_OF_STAGES": [
        app(start(), made(Functor, "slow", buffered("start")), made(Functor, "both", "start", buffered("slow"))),
        app(
            start(),
            made(Counter, "a", buffered("start"), control("c")),
            made(Functor, "b", buffered("a")),
            made(Functor, "c", buffered("b")),
        ),
    ],
    "START_BEHIND_CHANNEL": [
        app(
            start("a", consistent=PERIODIC),
            start("b", consistent=PERIODIC),
            made(Functor, "f", buffered("a"), "b"),
        )
    ],
    "FOLLOWER_OF_TWO_STAGES": [
        app(start(), made(Functor, "f", buffered("start")), made(Functor, "g", "start", "f", autonomous=True)),
    ],
    "CHANNEL_BOUNDS": [
        *(app(start(), made(Functor, "f", buffered("start", batches=wrong))) for wrong in (0, -1, 1.5, True, "8")),
        *(app(start(), made(Functor, "f", buffered("start", size=wrong))) for wrong in (0, "64", "MB", 1.5)),
        *(
            app(start(), made(Functor, "f", buffered("start", checkpoint_interval=wrong)))
            for wrong in (-1, dt.timedelta(seconds=-1), "1 s", float("nan"), 1e300)
        ),
    ],
    "CHANNEL_KEYS": [
        *(app(start(), made(Functor, "f", buffered("start", keys=wrong))) for wrong in (5, ["a", None])),
        app(
            start(),
            made(Functor, "f", buffered("start", keys=["a", "b"])),
            made(Functor, "g", buffered("start", keys=["b"]), "f"),
        ),
    ],
}


SHOWN = {
    "NO_INPUT": pytest.mark.seed("V17"),
    "CYCLE_NOT_ON_CONTROL_PORT": pytest.mark.seed("V21"),
    "LOOP_THROUGH_START": pytest.mark.seed("E6"),
    "BOTH_ANNOTATIONS": pytest.mark.seed("E5"),
    "START_KIND": pytest.mark.seed("E8"),
    "UNSUPPORTED_IN_REGION": pytest.mark.seed("V55", "E8"),
    "UNSUPPORTED_OPERATOR": pytest.mark.seed("V60"),
    "SECOND_START_IN_OPERATOR_DRIVEN": pytest.mark.seed("V41", "E3"),
    "MERGED_PARAMETERS_DIFFER": pytest.mark.seed("E3"),
    "TRIGGER_UNKNOWN": pytest.mark.seed("V34"),
    "PERIOD_MISSING": pytest.mark.seed("V35"),
    "PERIOD_FORBIDDEN": pytest.mark.seed("V35"),
    "NONPOSITIVE_TIMEOUT": pytest.mark.seed("V36", "V37", "E1"),
    "NEGATIVE_LIMIT": pytest.mark.seed("V38", "E1"),
    "CHECKPOINT_INTERVAL_INVALID": pytest.mark.seed("K6"),
    "ALIGNMENT_TIMEOUT_FORBIDDEN": pytest.mark.seed("E30"),
    "INFLIGHT_BOUND": pytest.mark.seed("F29"),
    "MIXED_PORT": pytest.mark.seed("V51", "V52"),
    "CHANGES": pytest.mark.seed("DL3"),
    "TWO_SCANNERS_OF_A_FOLDER": pytest.mark.seed("E24"),
    "CHANNEL_KEYS": pytest.mark.seed("AU9"),
}
"""The marks of the rules that show an id."""


@pytest.mark.parametrize(
    ("rule", "application"),
    [
        pytest.param(rule, application, marks=SHOWN.get(rule, ()))
        for rule, applications in BROKEN.items()
        for application in applications
    ],
)
def test_rule_alone_is_reported_with_operator_place_and_remedy(rule: str, application: Application) -> None:
    violations = violations_of(application)
    assert [violation.rule for violation in violations] == [rule]
    (violation,) = violations
    assert violation.remedy
    if rule != "BAD_APPLICATION_NAME":
        assert violation.operator
        assert violation.location is not None
        assert violation.operator in violation.message


def test_every_rule_is_broken_here() -> None:
    assert {rule.__name__.upper() for rule in RULES} == set(BROKEN)
    assert all(rule.__doc__ for rule in RULES)


@pytest.mark.seed("T7")
def test_all_violations_are_reported_at_once_in_the_order_of_the_file() -> None:
    violations = violations_of(
        app(
            start(consistent=replace(OPERATOR_DRIVEN, runs="x", period=dt.timedelta(seconds=-1))),
            made(Functor, "f", "strat"),
            made(Gate, "g", "start"),
            made(Custom, "h", "g", table="app_quarantine"),
        )
    )
    assert [(violation.operator, violation.rule) for violation in violations] == [
        ("start", "PERIOD_FORBIDDEN"),
        ("start", "NONPOSITIVE_TIMEOUT"),
        ("start", "RUNS_UNKNOWN"),
        ("f", "UNKNOWN_UPSTREAM"),
        ("g", "UNSUPPORTED_IN_REGION"),
        ("h", "RESERVED_TABLE"),
    ]


def test_unknown_upstream_names_the_nearest_stream_and_its_output() -> None:
    (violation,) = violations_of(
        app(start("landing", several=("orders", "payments")), made(Functor, "f", "landin__orders"))
    )
    assert (violation.remedy or "").startswith("did you mean 'landing__orders'? (a parameter means the operator")


@pytest.mark.seed("V55", "V56", "V57")
def test_operator_is_asked_about_itself_and_told_whether_it_is_in_a_region() -> None:
    (violation,) = violations_of(app(start(), made(FileSink, "log", "start")))
    assert violation.rule == "APPEND"
    compile_application(app(start(), made(FileSink, "log", "start", autonomous=True)))


@pytest.mark.seed("V55", "V44")
def test_operator_that_cannot_keep_the_promise_is_welcome_outside() -> None:
    compile_application(app(start(), made(Gate, "g", "start", autonomous=True), made(Custom, "s", "g")))


def bare(cls: type[Operator]) -> Operator:
    """Return an operator of a kind with only the common fields, annotated as a start."""
    operator = object.__new__(cls)
    facts = {"name": "it", "inputs": (), "location": Location("any.py", 1), "consistent": OPERATOR_DRIVEN}
    for name, value in {**facts, "autonomous": False, "composite": ()}.items():
        object.__setattr__(operator, name, value)
    return operator


@pytest.mark.seed("E6", "E8", "V55", "V60", "V139")
@pytest.mark.parametrize("cls", catalogue.kinds(), ids=lambda cls: cls.kind)
def test_every_kind_of_the_library_starts_a_region_or_says_why_not(cls: type[Operator]) -> None:
    draft = draft_of(app(bare(cls)))
    found = [violation.rule for rule in (start_kind, unsupported_in_region) for violation in rule(draft)]
    expected = [] if cls.may_start else ["START_KIND"] if cls.supports_consistent else ["UNSUPPORTED_IN_REGION"]
    assert found == expected
    assert bool(cls.refused_because) == bool(cls.instead) == (not cls.supports_consistent)


@pytest.mark.seed("V60", "E8", "V125", "V142", "V145")
@pytest.mark.parametrize("name", ["gate", "switch", "tcp_source", "udp_source", "tcp_sink", "udp_sink"])
def test_what_is_unsupported_on_purpose_says_why_and_what_to_do(name: str) -> None:
    (violation,) = violations_of(app(start(), dm_declared(getattr(dm, name), *(["start"] * ("source" not in name)))))
    assert violation.operator == name
    assert violation.location is not None
    assert violation.location.file == __file__
    assert violation.remedy


@pytest.mark.seed("E6", "V48")
def test_one_region_takes_in_what_another_writes() -> None:
    """Tables connect regions: one writes exactly once, the other reads with a start or through a lookup."""
    compile_application(
        app(
            start(),
            made(Custom, "writes", "start", table="orders"),
            made(TableSource, "orders", table="orders", consistent=OPERATOR_DRIVEN),
            made(Dimension, "known", table="orders"),
            made(Custom, "reads", "orders", "known", table="seen"),
        )
    )


@pytest.mark.seed("E24")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("inbox",), ("inbox2",)),
        (("inbox",), ("inbox/a",)),
        (("inbox/1", "inbox/1/*"), ("inbox/[78]", "inbox/[78]/*")),
        (("inbox/[0-3]",), ("inbox/[4-9]",)),
        (("inbox/[!a]",), ("inbox/a",)),
        (("s3://b/a[[]1]",), ("s3://b/a1",)),
        ((), ()),
    ],
)
def test_scanners_of_different_folders_are_legal(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    compile_application(scanning(first, second))


@pytest.mark.seed("E24")
def test_regions_may_scan_the_same_folder() -> None:
    """Each region takes every file once, independently of the other; only moving files would disturb the other."""
    compile_application(app(*(made(Scanner, name, folders=("inbox",), consistent=PERIODIC) for name in "ab")))


@pytest.mark.seed("E24")
@pytest.mark.parametrize(
    ("scan", "folders"),
    [
        (dm.DirectoryScan(path="inbox/./"), ("inbox",)),
        (dm.DirectoryScan(path="in[b]ox", recursive=True), ("in[[]b]ox", "in[[]b]ox/*")),
        (dm.DirectoryScan(path="inbox", pattern="1/*.txt", recursive=True), ("inbox/1", "inbox/1/*")),
        (dm.DirectoryScan(path="s3://b/in/", outputs={"a": "*.csv", "b": "b/*.csv"}), ("s3://b/in", "s3://b/in/b")),
    ],
)
def test_a_scan_knows_its_folders(scan: dm.DirectoryScan, folders: tuple[str, ...]) -> None:
    assert tuple(scan.folders()) == folders


@pytest.mark.seed("V49", "V51")
def test_port_of_two_regions_streams_at_a_start_is_not_mixed() -> None:
    """A stream from another region and a stream from no region are both from outside."""
    second = made(Beacon, "b", "a:data", "d:data", consistent=PERIODIC)
    compile_application(app(start("a", consistent=PERIODIC), made(Dimension, "d"), second))


@pytest.mark.seed("V126", "E3")
def test_a_thread_lives_in_the_runs_of_a_region_that_lingers_for_another_start() -> None:
    lingering = start("b", consistent=replace(PERIODIC, linger=dt.timedelta(seconds=5)))
    threaded = made(Threaded, "t", consistent=replace(PERIODIC, linger=dt.timedelta(0)))
    compile_application(app(threaded, lingering, made(Functor, "f", "t", "b")))


@pytest.mark.seed("V50")
def test_both_kinds_of_stream_on_two_ports_are_legal() -> None:
    compile_application(figure_1c())


@pytest.mark.seed("V21", "E6")
def test_loop_on_a_control_port_behind_the_start_is_legal() -> None:
    compile_application(app(start(), made(Counter, "a", "start", control("b")), made(Functor, "b", "a")))


@pytest.mark.seed("E6")
def test_loop_that_leaves_the_region_and_comes_back_to_its_start_is_refused() -> None:
    violations = violations_of(
        app(
            made(Beacon, "a", control("back"), consistent=PERIODIC),
            made(Functor, "f", "a"),
            made(Functor, "back", "f", autonomous=True),
        )
    )
    assert [violation.rule for violation in violations] == ["LOOP_THROUGH_START"]
    assert "a → f → back → a" in violations[0].message


@pytest.mark.seed("V39", "E1")
def test_zero_attempts_and_no_horizon_are_legal() -> None:
    compile_application(declared(max_consecutive_reset_attempts=0, rewind_horizon=0, schedule="*/5 * * * MON-FRI"))


def test_ports_without_a_parameter_are_ports_of_their_own() -> None:
    compile_application(
        app(start(), made(Dimension, "d"), made(Functor, "f", Input(upstream="start"), Input(upstream="d")))
    )


@pytest.mark.seed("AU2")
def test_what_only_classic_spark_has_is_refused_with_its_own_line() -> None:
    (violation,) = violations_of(app(start(), functor("f", calls_another)))
    line = mapped_by_rdd.__code__.co_firstlineno + 1
    assert violation.location == Location(__file__, line)
    assert "mapInPandas" in (violation.remedy or "")
