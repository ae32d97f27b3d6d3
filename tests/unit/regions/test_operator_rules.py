"""Declarations that the operators of the library refuse, by rule id (V55, V56, V142, V145, E8)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, UsageError
from drainmark.jobs.errors.environment import ApplicationBroken
from drainmark.jobs.graph.application import load_application
from drainmark.jobs.operators.catalogue import entries
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.regions.warnings import notes

MINUTE = dt.timedelta(minutes=1)
TIMES = {"left_time": "at", "right_time": "at"}
AS_OF: dict[str, Any] = {"keys": ["k"], "as_of": "at"}
BY_TIME: dict[str, Any] = {"on": ["k"], "within": (-MINUTE, MINUTE), "lateness": 0, **TIMES}


def applied(stream: Any, **options: Any) -> Any:
    """Apply changes, and pass them to nothing that may not read them."""
    changed = dm.apply_changes(stream, **{"keys": ["k"], "sequence_by": "at", **options})
    dm.sink(changed, dm.DeltaUpsert("changed", keys=["k"]))
    return stream


def broken(declare: Callable[[Any, Any], Any]) -> set[str]:
    """Return the rules that a declaration over two streams breaks."""
    with dm.application("refused") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, at timestamp"))
        def events(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def others(events: Any) -> Any:
            return events

        dm.sink(declare(events, others), dm.DeltaAppend("out"))
    try:
        compile_application(dm.build_application(declared))
    except DeclarationError as error:
        return {violation.rule for violation in error.violations}
    return set()


REFUSED: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("UNION_INPUTS", lambda a, b: dm.union(a)),
    ("SPLIT_OUTPUTS", lambda a, b: dm.split(a, outputs={"no name": "true"})["no name"]),
    ("SPLIT_OUTPUTS", lambda a, b: dm.split(a, outputs={"x": "true"}, otherwise="x")["x"]),
    ("SPLIT_TO", lambda a, b: dm.split(a, outputs={"x": "true"}, to="some")["x"]),
    ("EXPECT_CONDITION", lambda a, b: dm.expect(a, " ")),
    ("EXPECT_ON_FAIL", lambda a, b: dm.expect(a, "true", on_fail="drop")),
    ("SORT_BY", lambda a, b: dm.sort(a, by=[])),
    ("SORT_WINDOW", lambda a, b: dm.sort(a, by=["k"], window="all")),
    ("PUNCTOR_AT", lambda a, b: dm.punctor(a, "true", at="fall")),
    ("PUNCTOR_KEYS", lambda a, b: dm.punctor(a, "true", at="every", keys=["k"])),
    ("DEDUPLICATE_KEYS", lambda a, b: dm.deduplicate(a, keys=[])),
    ("DEDUPLICATE_WITHIN", lambda a, b: dm.deduplicate(a, keys=["k"], within=-1)),
    ("DEDUPLICATE_WITHIN", lambda a, b: dm.deduplicate(a, keys=["k"], within=-MINUTE, event_time="at")),
    ("DEDUPLICATE_TIME", lambda a, b: dm.deduplicate(a, keys=["k"], within=MINUTE)),
    ("APPLY_CHANGES_KEYS", lambda a, b: applied(a, keys=[])),
    ("APPLY_CHANGES_SEQUENCE", lambda a, b: applied(a, sequence_by=[])),
    ("APPLY_CHANGES_SEQUENCE", lambda a, b: applied(a, sequence_by=" ")),
    ("APPLY_CHANGES_CONDITION", lambda a, b: applied(a, apply_as_deletes=" ")),
    ("APPLY_CHANGES_COLUMNS", lambda a, b: applied(a, columns=["k"], except_columns=["at"])),
    ("APPLY_CHANGES_COLUMNS", lambda a, b: applied(a, except_columns=["k"])),
    ("APPLY_CHANGES_TYPE", lambda a, b: applied(a, stored_as_scd_type=3)),
    ("APPLY_CHANGES_HISTORY", lambda a, b: applied(a, track_history_columns=["k"])),
    ("APPLY_CHANGES_HISTORY", lambda a, b: applied(a, stored_as_scd_type=2, apply_as_truncates="true")),
    ("APPLY_CHANGES_HISTORY", lambda a, b: applied(
        a, stored_as_scd_type=2, track_history_columns=["k"], track_history_except_columns=["k"])),
    ("APPLY_CHANGES_WITHIN", lambda a, b: applied(a, within=-1)),
    ("APPLY_CHANGES_WITHIN", lambda a, b: applied(a, within=-MINUTE)),
    ("APPLY_CHANGES_WITHIN", lambda a, b: applied(a, within=dt.timedelta.max)),  # in microseconds above 64 bits
    ("APPLY_CHANGES_WITHIN", lambda a, b: applied(a, within=MINUTE, sequence_by=["at", "k"])),
    ("APPLY_CHANGES_WITHIN", lambda a, b: applied(a, within=1, stored_as_scd_type=2)),
    ("ARGUMENT_TYPE", lambda a, b: applied(a, within="1 hour")),
    ("DELAY_BY", lambda a, b: dm.delay(a)),
    ("DELAY_BY", lambda a, b: dm.delay(a, ids=0)),
    ("DELAY_BY", lambda a, b: dm.delay(a, ids=1, duration=MINUTE, event_time="at")),
    ("DELAY_BY", lambda a, b: dm.delay(a, duration=MINUTE)),
    ("BARRIER_INPUTS", lambda a, b: dm.barrier(a)),
    ("BARRIER_INPUTS", lambda a, b: dm.barrier(a, a)),
    ("DYNAMIC_FILTER_KEYS", lambda a, b: dm.dynamic_filter(a, b, on=[])),
    ("JOIN_KEYS", lambda a, b: dm.join(a, b, on=[], left_window=1)),
    ("JOIN_KIND", lambda a, b: dm.join(a, b, on=["k"], kind="cross", left_window=1)),
    ("JOIN_KIND", lambda a, b: dm.join(a, b, on=["k"], kind="left", left_window=1, right_window=1)),
    ("JOIN_KIND", lambda a, b: dm.join(a, b, on=["k"], kind="full", right_window=1)),
    ("JOIN_INPUTS", lambda a, b: dm.join(a, a, on=["k"], left_window=1)),
    ("JOIN_WINDOW", lambda a, b: dm.join(a, b, on=["k"])),
    ("JOIN_WINDOW", lambda a, b: dm.join(a, b, on=["k"], left_window=0)),
    ("JOIN_WINDOW", lambda a, b: dm.join(a, b, on=["k"], left_window="id")),
    ("JOIN_TIME", lambda a, b: dm.join(a, b, on=["k"], left_window=MINUTE)),
    ("JOIN_KEYS", lambda a, b: dm.join(a, b, **{**BY_TIME, "on": []})),
    ("BAD_COLUMN", lambda a, b: dm.join(a, b, **{**BY_TIME, "on": ["k", 1]})),
    ("JOIN_HOW", lambda a, b: dm.join(a, b, **BY_TIME, how="outer")),
    ("JOIN_INPUTS", lambda a, b: dm.join(a, a, **BY_TIME)),
    ("JOIN_WITHIN", lambda a, b: dm.join(a, b, **{**BY_TIME, "within": None})),
    ("JOIN_WITHIN", lambda a, b: dm.join(a, b, **{**BY_TIME, "within": MINUTE})),
    ("JOIN_WITHIN", lambda a, b: dm.join(a, b, **{**BY_TIME, "within": (0, 60)})),
    ("JOIN_WITHIN", lambda a, b: dm.join(a, b, **{**BY_TIME, "within": (MINUTE, -MINUTE)})),
    ("JOIN_WITHIN", lambda a, b: dm.join(a, b, **{**BY_TIME, "within": (MINUTE, dt.timedelta.max)})),
    ("JOIN_TIME", lambda a, b: dm.join(a, b, **{**BY_TIME, "left_time": None})),
    ("JOIN_LATENESS", lambda a, b: dm.join(a, b, **{**BY_TIME, "lateness": None})),
    ("JOIN_LATENESS", lambda a, b: dm.join(a, b, **{**BY_TIME, "lateness": -1})),
    ("JOIN_LATENESS", lambda a, b: dm.join(a, b, **{**BY_TIME, "lateness": "1 hour"})),
    ("JOIN_LATENESS", lambda a, b: dm.join(a, b, **BY_TIME, max_ahead=0)),
    ("JOIN_LATENESS", lambda a, b: dm.join(a, b, **BY_TIME, max_ahead="1 hour")),
    ("JOIN_SUFFIXES", lambda a, b: dm.join(a, b, **BY_TIME, suffixes=("_x", "_x"))),
    ("JOIN_SUFFIXES", lambda a, b: dm.join(a, b, **BY_TIME, suffixes="_right")),
    ("LOOKUP_SCHEMA", lambda a, b: dm.union(a, dm.lookup("prices", schema=" "))),
    ("LOOKUP_SCHEMA", lambda a, b: dm.union(a, dm.lookup("prices", schema=["item"]))),
    ("ASOF_TABLE", lambda a, b: dm.join_as_of(a, b, keys="k", as_of="at")),
    *((rule, lambda a, b, given=given: dm.join_as_of(a, dm.lookup("prices"), **{**AS_OF, **given})) for rule, given in (
        ("JOIN_KEYS", {"keys": []}),
        ("JOIN_HOW", {"how": "full"}),
        ("JOIN_TIME", {"as_of": None}),
        ("JOIN_TIME", {"valid_from": ""}),
        ("JOIN_TIME", {"valid_to": 7}),
        ("JOIN_TIME", {"valid_to": "valid_from"}),
        ("JOIN_TIME", {"known_by": ""}),
        ("JOIN_LATENESS", {"late": -1}),
        ("JOIN_LATENESS", {"late": None}),
        ("JOIN_SUFFIXES", {"suffix": ""}),
    )),
    ("THROTTLE_RATE", lambda a, b: dm.throttle(a, 0)),
    ("PARSE_FORMAT", lambda a, b: dm.parse(a, "k", format="xml", schema="x string")),
    ("PARSE_SCHEMA", lambda a, b: dm.parse(a, "k", format="json")),
    ("PARSE_SCHEMA", lambda a, b: dm.parse(a, "k", format="line", schema="x string")),
    ("PARSE_ON_BAD", lambda a, b: dm.parse(a, "k", format="json", schema="x string", on_bad="drop")),
    *(("PARSE_OPTIONS", lambda a, b, given=given: dm.parse(a, "k", **given)) for given in (
        {"format": "csv", "schema": "x string", "options": {"sep": ";"}},
        {"format": "csv", "schema": "x string", "options": {"Header": "true"}},
        {"format": "csv", "schema": "x string", "options": {"mode": "DROPMALFORMED"}},
        {"format": "json", "schema": "x date", "options": {"dateFormat": "YYYY"}},
        {"format": "key_value", "schema": "x date", "options": {"dateFormat": "yyyy"}},
    )),
    ("FORMAT_FORMAT", lambda a, b: dm.format(a, "line")),
    ("DECOMPRESS_CODEC", lambda a, b: dm.decompress(a, "k", codec="lzma")),
    ("DECOMPRESS_ON_BAD", lambda a, b: dm.decompress(a, "k", on_bad="drop")),
    ("DEDUPLICATE_KEYS", lambda a, b: dm.deduplicate(a, keys=None)),
    ("BAD_COLUMN", lambda a, b: dm.deduplicate(a, keys=["k", 1])),
    ("BAD_COLUMN", lambda a, b: dm.join(a, b, **{**BY_TIME, "on": ["k", "v", "k"]})),
    ("BAD_COLUMN", lambda a, b: dm.aggregate(a, keys=["k", "K"], values={"n": dm.count()})),
    ("BAD_COLUMN", lambda a, b: dm.barrier(a, b, keys=["k", "k"])),
    ("BAD_COLUMN", lambda a, b: (dm.sink(b, dm.DeltaUpsert("t", keys=["k", "at", "At"])), a)[1]),
    ("SPLIT_OUTPUTS", lambda a, b: dm.split(a, outputs={"x": lambda rows: rows.k})["x"]),
    ("AGGREGATE_VALUES", lambda a, b: dm.aggregate(a, keys=["k"], values=[dm.count()])),
    ("AGGREGATE_VALUES", lambda a, b: dm.aggregate(a, keys=["k"], values={"n": "count"})),
    ("WINDOW_KIND", lambda a, b: dm.aggregate(a, keys=["k"], values={"n": dm.count()}, window=5)),
    *(("WINDOW_LATENESS", lambda a, b, late=late: dm.aggregate(
        a, keys=["k"], values={"n": dm.count()}, window=dm.tumbling("at", hours=1), emit="closed", lateness=late))
      for late in ("1 hour", float("nan"), dt.timedelta.max)),
    ("WINDOW_LATENESS", lambda a, b: dm.aggregate(
        a, keys=["k"], values={"n": dm.count()}, window=dm.tumbling("at", hours=1), lateness=0, max_ahead="1 hour")),
    *(("WINDOW_SIZE", lambda a, b, gap=gap: dm.aggregate(
        a, keys=["k"], values={"n": dm.count()}, window=dm.session("at", gap=gap), emit="closed", lateness=0))
      for gap in ("1 hour", dt.timedelta.max)),
    ("WINDOW_SIZE", lambda a, b: dm.aggregate(
        a, keys=["k"], values={"n": dm.count()}, window=dm.sliding("at", hours=1, every="1 hour"))),
    ("ARGUMENT_TYPE", lambda a, b: dm.aggregate(
        a, keys=["k"], values={"n": dm.count()}, window=dm.sliding("at", delta="1 hour"))),
    *(("DELAY_BY", lambda a, b, ids=ids: dm.delay(a, ids=ids)) for ids in ("1", 1.5, True)),
    *(("DELAY_BY", lambda a, b, held=held: dm.delay(a, duration=held, event_time="at"))
      for held in ("1 hour", dt.timedelta.max)),
    *(("DEDUPLICATE_WITHIN", lambda a, b, within=within: dm.deduplicate(a, keys=["k"], within=within, event_time="at"))
      for within in ("1 hour", 1.5, True, dt.timedelta.max)),
    ("ARGUMENT_TYPE", lambda a, b: dm.throttle(a, "fast")),
    ("JOIN_WINDOW", lambda a, b: dm.join(a, b, on=["k"], left_window="1 hour")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "declare"), REFUSED, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(REFUSED)])
def test_a_configuration_that_cannot_be_is_refused(rule: str, declare: Callable[[Any, Any], Any]) -> None:
    assert broken(declare) == {rule}


ALLOWED: list[Callable[[Any, Any], Any]] = [
    lambda a, b: dm.join(a, b, on=["k"], kind="latest"),
    lambda a, b: dm.join(a, b, on=["k"], kind="left", right_window=MINUTE, **TIMES),
    lambda a, b: dm.join(a, b, on=["k"], kind="full", left_window="id", right_window="id"),
    lambda a, b: dm.join(a, b, **BY_TIME),
    lambda a, b: dm.join(a, b, **{**BY_TIME, "on": "k", "within": [MINUTE, MINUTE]}, how="full"),
    lambda a, b: dm.deduplicate(a, keys=["k"], within=0),
    lambda a, b: applied(a, within=0, apply_as_truncates="k is null"),
    lambda a, b: applied(a, sequence_by=["at", "k"], stored_as_scd_type=2, track_history_except_columns=["k"]),
    lambda a, b: dm.split(a, outputs={"x": "k is null"}, otherwise="y")["y"],
]


@pytest.mark.parametrize("declare", ALLOWED, ids=range(len(ALLOWED)))
def test_what_can_be_is_not_refused(declare: Callable[[Any, Any], Any]) -> None:
    assert broken(declare) == set()


@pytest.mark.seed("NU1")
@pytest.mark.parametrize(
    "of_windows",
    [{"left_window": 1}, {"right_window": MINUTE}, {"kind": "latest"}],
    ids=lambda given: next(iter(given)),
)
def test_a_join_goes_by_event_time_or_by_windows_and_not_by_both(of_windows: dict[str, Any]) -> None:
    for of_interval in (BY_TIME, {"on": ["k"], "suffixes": ("", "_of_b")}):
        with pytest.raises(UsageError) as refused:
            broken(lambda a, b, given=of_interval: dm.join(a, b, **given, **of_windows))
        assert refused.value.location
        assert refused.value.remedy


@pytest.mark.seed("NU1")
def test_the_graph_says_what_a_join_loses() -> None:
    """Windows depend on the order of arrival; late rows that no operator reads are not kept."""

    def noted(declare: Callable[[Any, Any], Any]) -> tuple[str, ...]:
        with dm.application("noted") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, at timestamp"))
            def events(scanned: Any) -> Any:
                return scanned

            others = dm.functor(lambda events: events, name="others", inputs=[events])
            for number, stream in enumerate(declare(events, others)):
                dm.sink(stream, dm.DeltaAppend(f"out_{number}"))
        return notes(compile_application(dm.build_application(declared)))

    for windows in ({"left_window": MINUTE, "right_window": MINUTE, **TIMES}, {"kind": "latest"}):
        (note,) = noted(lambda a, b, windows=windows: [dm.join(a, b, on=["k"], name="met", **windows)])
        assert note.startswith("met depends on the order in which rows are read")
        assert "within=" in note
    assert noted(lambda a, b: [dm.join(a, b, on=["k"], left_window="id", right_window="id")]) == ()
    (note,) = noted(lambda a, b: [dm.join(a, b, **BY_TIME, name="met")])
    assert "met[late_left] or met[late_right]" in note

    def all_read(a: Any, b: Any) -> list[Any]:
        met = dm.join(a, b, **BY_TIME, name="met")
        return [met, met["late_left"], met["late_right"]]

    assert noted(all_read) == ()
    counts = {"keys": ["k"], "values": {"n": dm.count()}, "window": dm.tumbling("at", hours=1)}
    hours = noted(lambda a, b: [dm.aggregate(a, **counts, lateness=0, name="hours"), b])
    assert ["hours[late]" in note for note in hours] == [True]


def test_only_sources_may_start_a_region() -> None:
    """E8: no operator of the library that has an input ever starts one."""
    places = {entry.kind: entry.place for entry in entries()}
    within = ("union", "split", "sort", "punctor", "deduplicate", "barrier", "join", "interval join", "as-of join",
              "delay",
              "throttle", "parse", "format", "dynamic-filter", "filter", "functor")  # fmt: skip
    assert {places[kind] for kind in within} == {"region"}
    assert places["source"] == "start"


@pytest.mark.seed("V86", "V149")
def test_what_sees_one_row_at_a_time_keeps_no_state() -> None:
    with dm.application("stateless") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string"))
        def events(scanned: Any) -> Any:
            return scanned

        shown = dm.functor(lambda events: events, name="shown", inputs=[events])
        kept = dm.filter(lambda shown: shown["k"].isNotNull(), name="kept", inputs=[shown])
        dm.sink(kept, dm.DeltaAppend("out"))
    (region,) = compile_application(dm.build_application(declared)).regions
    assert region.stateful == ()
    assert [table.name for table in region.tables] == ["out"]


def test_a_loop_on_a_dynamic_filter_makes_groups_of_one() -> None:
    def filtered(control: Any) -> tuple[str, ...]:
        with dm.application("looped") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string"))
            def events(scanned: Any) -> Any:
                return scanned

            kept = dm.dynamic_filter(events, control(events), on=["k"], name="kept")
            dm.functor(lambda kept: kept, name="named", inputs=[kept])
        return compile_application(dm.build_application(declared)).regions[0].forced_single

    assert filtered(lambda events: events) == ()
    assert filtered(lambda events: "named") == ("kept",)


@pytest.mark.parametrize(
    "declare",
    [
        lambda events: dm.deduplicate(events, keys="k"),
        lambda events: dm.aggregate(events, keys="k", values={"n": dm.count()}),
        lambda events: dm.join(events, events, on="k", left_window=1, right_window=1),
        lambda events: dm.join(events, events, **{**BY_TIME, "on": "k"}),
        lambda events: dm.join_as_of(events, dm.lookup("prices"), **{**AS_OF, "keys": "k"}),
        lambda events: dm.dynamic_filter(events, events, on="k"),
        lambda events: dm.pair(events, events, key="k"),
        lambda events: dm.barrier(events, events, keys="k"),
        lambda events: dm.punctor(events, "true", keys="k"),
        lambda events: dm.sink(events, dm.DeltaUpsert("latest", keys="k")),
    ],
)
def test_a_text_is_one_name_of_a_column(declare: Callable[[Any], Any]) -> None:
    with dm.application("one_name"):
        assert declare(dm.functor(lambda seen: seen, inputs="elsewhere", name="events")).operator.keys == ("k",)


@pytest.mark.parametrize(
    ("said", "declare"),
    [
        (r"\[<stream events of functor>\] is given where", lambda events: dm.delay([events], ids=1)),
        (r"\[<stream events of functor>\] is given where", lambda events: dm.union([events])),
        (r"DeltaAppend.* is given where", lambda events: dm.sort(dm.DeltaAppend("out"), by="k")),
        ("'out', which is no target", lambda events: dm.sink(events, "out")),
        ("which is no target", lambda events: dm.sink(events, events)),
        ("which is no target", lambda events: dm.sink(events, dm.DeltaAppend)),
        ("which is no source", lambda events: dm.source(dm.DirectoryScan)),
        ("'n > 1' is no function", lambda events: dm.filter("n > 1")),
        (r"one reads 1 stream\(s\) and is given 2", lambda events: dm.functor(one, inputs=[events, events])),
        (r"one reads 1 stream\(s\) and is given 0", lambda events: dm.functor(one, inputs=[])),
    ],
)
def test_what_is_given_in_place_of_another_is_told_where(said: str, declare: Callable[[Any], Any]) -> None:
    with dm.application("mistaken"), pytest.raises(UsageError, match=said) as caught:
        declare(dm.functor(lambda seen: seen, inputs="elsewhere", name="events"))
    assert caught.value.location.file == __file__
    assert caught.value.remedy


def one(seen: Any) -> Any:
    return seen


@pytest.mark.parametrize(
    ("call", "count", "remedy"),
    [
        ('dm.DirectoryScan("in", "*.csv", "csv")', "3 arguments", "dm.DirectoryScan(path=…, pattern=…, format=…)"),
        ('dm.DirectoryScan("in", format="csv")', "1 argument", "dm.DirectoryScan(path=…)"),
        ('dm.aggregate("lines", ["k"])', "1 argument", "dm.aggregate(stream, keys=…)"),
    ],
)
def test_arguments_without_names_are_named_in_the_call_to_write(
    tmp_path: Path, call: str, count: str, remedy: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(f"import drainmark as dm\n\n{call}\n")
    with pytest.raises(ApplicationBroken, match=f"was given {count}") as caught:
        load_application(str(path))
    assert str(caught.value.location) == f"{path}:3"
    assert f"write {remedy}" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("call", "said", "remedy"),
    [
        ('dm.DirectoryScan(path="in", patern="*.csv")', "dm.DirectoryScan has no argument 'patern'", "'pattern'"),
        ('dm.DeltaUpsert("t", key=["k"])', "dm.DeltaUpsert has no argument 'key'", "'keys'"),
        ('dm.aggregate("lines", key=["k"], values={})', "dm.aggregate has no argument 'key'", "'keys'"),
    ],
)
def test_an_argument_that_there_is_not_is_told_with_the_nearest(
    tmp_path: Path, call: str, said: str, remedy: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(f"import drainmark as dm\n\n{call}\n")
    with pytest.raises(ApplicationBroken, match=said) as caught:
        load_application(str(path))
    assert str(caught.value.location) == f"{path}:3"
    assert (caught.value.remedy or "").startswith(f"did you mean {remedy}?")


@pytest.mark.parametrize(
    ("call", "said"),
    [("sink(1)", r"TypeError: sink\(\) takes 0"), ("sink(stream=1, to=1)", r"TypeError: sink\(\) got an unexpected")],
)
def test_calls_of_others_are_told_as_python_tells_them(tmp_path: Path, call: str, said: str) -> None:
    path = tmp_path / "app.py"
    path.write_text(f"def sink(*, to): pass\n\n{call}\ndef other(): pass\n")
    with pytest.raises(ApplicationBroken, match=said):
        load_application(str(path))
