"""A region is cut into stages only at its buffered edges; its results do not depend on the cut."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Annotated, Any

import pytest
from channel_parts import MemoryFiles, rows_of, spool_of
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import (
    FIGURES,
    OPERATOR_DRIVEN,
    PERIODIC,
    Beacon,
    Counter,
    Custom,
    Dimension,
    Functor,
    app,
    buffered,
    connections,
    control,
    figure_3,
    made,
)

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, UnknownName, UsageError
from drainmark.jobs.graph.annotations import Buffered, size_of, size_text
from drainmark.jobs.graph.application import Application
from drainmark.jobs.regions.plan import RegionPlan, compile_application
from drainmark.jobs.runtime.stages.channels.channel import AT_ONCE
from drainmark.jobs.runtime.stages.channels.channel_group import Exchange
from drainmark.jobs.runtime.stages.channels.stage_endpoints import connect


def start(name: str = "start", **fields: Any) -> Any:
    return made(Beacon, name, **{"consistent": OPERATOR_DRIVEN, **fields})


def region_of(*operators: Any) -> RegionPlan:
    (region,) = compile_application(app(*operators)).regions
    return region


def cut_as(region: RegionPlan) -> list[list[str]]:
    return [[operator.name for operator in stage.operators] for stage in region.stages]


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_a_region_without_buffered_edges_is_one_stage(figure: str) -> None:
    for region in compile_application(FIGURES[figure]()).regions:
        (stage,) = region.stages
        assert (stage.name, stage.operators, stage.run_order) == (
            region.operators[0].name, region.operators, region.run_order,
        )  # fmt: skip
        assert (stage.starts, stage.followers) == (region.starts, region.followers)
        assert (stage.inputs, stage.outputs, region.channels) == ((), (), ())


@pytest.mark.seed("F8", "X1")
def test_a_chain_is_cut_where_the_reader_says_so() -> None:
    region = region_of(
        start(),
        made(Functor, "map", "start"),
        made(Functor, "sleepy", buffered("map", batches=3, size="2 MB", checkpoint_interval=4)),
        made(Custom, "kept", "sleepy"),
        made(Functor, "measuring", buffered("sleepy")),
        made(Custom, "measured", "measuring"),
    )
    assert cut_as(region) == [["start", "map"], ["sleepy", "kept"], ["measuring", "measured"]]
    assert [channel.name for channel in region.channels] == ["map->sleepy", "sleepy->measuring"]
    first, second = region.channels
    assert (first.stage_from, first.stage_to, first.batches, first.bytes) == ("start", "sleepy", 3, 2_000_000)
    assert (second.batches, second.bytes) == (8, 64_000_000)
    source, slow, last = region.stages
    assert (source.inputs, source.outputs) == ((), (first,))
    assert (slow.inputs, slow.outputs) == ((first,), (second,))
    assert [stage.checkpoint_interval for stage in region.stages] == [None, dt.timedelta(seconds=4), None]
    assert [[operator.name for operator in stage.starts] for stage in region.stages] == [["start"], [], []]
    assert region.stage("sleepy") is slow
    assert first.name == "map->sleepy"
    with pytest.raises(UnknownName):
        region.stage("slepy")
    assert last.outputs == ()


def test_readers_of_one_stage_share_a_channel_of_the_widest_bounds() -> None:
    region = region_of(
        start(several=("orders", "payments")),
        made(Functor, "a", buffered("start__orders", batches=2, size="9 MB", checkpoint_interval=5)),
        made(Functor, "b", buffered("start__orders", batches=4, size="1 MB", checkpoint_interval=dt.timedelta(0)), "a"),
        made(Functor, "c", buffered("start__payments"), "b"),
        made(Functor, "alone", buffered("start__orders")),
    )
    assert cut_as(region) == [["start"], ["a", "b", "c"], ["alone"]]
    shared, other, own = region.channels
    assert shared.name == "start[orders]->a"
    assert (shared.batches, shared.bytes, shared.readers, shared.connections) == (4, 9_000_000, ("a", "b"), 2)
    assert (other.name, own.name) == ("start[payments]->a", "start[orders]->alone")
    assert region.stage("a").checkpoint_interval == dt.timedelta(seconds=5)


@pytest.mark.seed("F6", "AU9")
def test_keys_are_the_channel_s_whichever_reader_gives_them_and_are_what_is_computed() -> None:
    def application(*keys: Any) -> Application:
        readers = [made(Functor, name, buffered("start", keys=given)) for name, given in zip("ab", keys, strict=True)]
        return app(start(), *readers, made(Functor, "c", "a", "b"))

    plain, keyed, text = ((compile_application(application((), given))) for given in ((), ["x", "y"], "x"))
    assert [plan.regions[0].channels[0].keys for plan in (plain, keyed, text)] == [(), ("x", "y"), ("x",)]
    assert len({plan.fingerprint for plan in (plain, keyed, text)}) == 3
    of_operators = [plan.regions[0].fingerprints for plan in (plain, keyed)]
    assert [name for name in of_operators[0] if of_operators[0][name] != of_operators[1][name]] == ["b"]
    assert compile_application(application(["x", "y"], ["x", "y"])).regions[0].channels[0].keys == ("x", "y")


@pytest.mark.seed("V53")
def test_feeds_and_followers_belong_to_the_stage_next_to_them() -> None:
    region = region_of(
        start(),
        made(Dimension, "known"),
        made(Functor, "clean", "known"),
        made(Functor, "f", buffered("start"), "clean"),
        made(Functor, "watching", "f", autonomous=True),
        made(Functor, "counting", "watching"),
        made(Functor, "early", "start", autonomous=True),
    )
    first, second = region.stages
    assert [operator.name for operator in second.run_order] == ["known", "clean", "f"]
    assert [operator.name for operator in second.operators] == ["f"]
    assert [operator.name for operator in second.followers] == ["watching", "counting"]
    assert [operator.name for operator in first.followers] == ["early"]


@pytest.mark.seed("V32", "V40")
def test_several_starts_may_be_stages_of_their_own() -> None:
    region = region_of(
        start("a", consistent=PERIODIC),
        start("b", consistent=PERIODIC),
        made(Functor, "f", buffered("a:rows"), buffered("b:rows")),
    )
    assert cut_as(region) == [["a"], ["b"], ["f"]]
    assert [channel.name for channel in region.channels] == ["a->f", "b->f"]


@pytest.mark.seed("V21", "V95")
def test_a_loop_on_a_control_port_stays_in_one_stage() -> None:
    """Figure 3 with buffered data connections: op3 still awaits two of them, and the loop before a checkpoint."""
    region = figure_3_in_stages()
    assert cut_as(region) == [["op1"], ["op2"], ["op3", "op4", "op5"]]
    assert connections(region, "op3") == [2, 1, 1, 0]
    assert sum(channel.connections for channel in region.stage("op3").inputs) == 2


def figure_3_in_stages() -> RegionPlan:
    whole = figure_3()
    cut = replace(
        whole,
        operators=tuple(
            replace(
                operator,
                inputs=tuple(
                    replace(port, buffered=Buffered()) if port.parameter == "data" else port for port in operator.inputs
                ),
            )
            for operator in whole.operators
        ),
    )
    (region,) = compile_application(cut).regions
    return region


@pytest.mark.seed("V88", "V90", "V92", "V93", "V95")
@pytest.mark.parametrize("starts", [("op1", "op2"), ("op2", "op1")])
def test_figure_3_awaits_two_batches_none_of_the_autonomous_port_and_its_loop(starts: tuple[str, ...]) -> None:
    region = figure_3_in_stages()
    exchange = Exchange(region.stages, region.channels, region.parameters)
    exchange.open(1, spool_of(MemoryFiles()), through=dict.fromkeys(exchange.stages, 0))
    with connect(exchange, "op3", 1) as ends:
        for name in starts:
            assert ends.take(AT_ONCE) is None, "the other connection of the same port may have brought its batch"
            connect(exchange, name, 1).hand_over(name, {name: rows_of(1)}, ids=(1, 1), wait=AT_ONCE)
        taken = ends.take(AT_ONCE)
        assert taken is not None, "op6, which is autonomous, and op4, which has yet to run, are not awaited"
        assert set(taken.batches) == {"op1", "op2"}
        assert [part.stage for part in exchange.snapshot().parts] == ["op1", "op2"]
        ends.hand_over("op3", {}, taken=taken, wait=AT_ONCE)  # after op4 and op5, which belong to this stage
    assert [part.stage for part in exchange.snapshot().parts] == ["op3"]


def test_the_cut_is_in_no_fingerprint() -> None:
    joined = app(start(), made(Counter, "f", "start"), made(Custom, "g", "f", table="t"))
    cut = app(start(), made(Counter, "f", buffered("start")), made(Custom, "g", buffered("f", batches=2), table="t"))
    one, other = compile_application(joined), compile_application(cut)
    assert one.fingerprint == other.fingerprint
    assert one.regions[0].fingerprints == other.regions[0].fingerprints
    assert len(other.regions[0].stages) == 3


@pytest.mark.seed("E3")
def test_merged_regions_take_the_larger_numbers() -> None:
    parameters = {
        "alignment_timeout": dt.timedelta(seconds=3),
        "max_inflight_bytes": "1 MB",
        "checkpoint_interval": dt.timedelta(seconds=1),
    }
    larger = {
        "alignment_timeout": dt.timedelta(seconds=2),
        "max_inflight_bytes": 3_000_000,
        "checkpoint_interval": dt.timedelta(seconds=9),
    }
    region = region_of(
        start("a", consistent=replace(PERIODIC, **parameters)),
        start("b", consistent=replace(PERIODIC, **larger)),
        made(Functor, "f", "a", "b"),
    )
    merged = region.parameters
    assert (merged.alignment_timeout, merged.checkpoint_interval) == (dt.timedelta(seconds=3), dt.timedelta(seconds=9))
    assert merged.inflight_bytes_bound == 3_000_000


@st.composite
def cuttable(draw: st.DrawFn) -> tuple[Application, Application]:
    """Draw a region of up to 10 operators in random layers, with channels between layers, and without channels."""
    count = draw(st.integers(2, 10))
    layer = sorted(draw(st.integers(0, 3)) for _ in range(count - 1))
    operators = [start()]
    for index, own in enumerate(layer, 1):
        upstream = draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=3))
        ports = [
            replace(control_free, buffered=None if (layer[number - 1] if number else 0) == own else Buffered())
            for number in sorted(upstream)
            for control_free in made(Functor, "x", f"op{number}" if number else "start").inputs
        ]
        operators.append(made(Functor, f"op{index}", *ports))
    plain = [replace(each, inputs=tuple(replace(port, buffered=None) for port in each.inputs)) for each in operators]
    return app(*operators), app(*plain)


@settings(max_examples=examples(150), deadline=None)
@given(cuttable())
def test_stages_are_what_is_left_when_channels_are_taken_away(drawn: tuple[Application, Application]) -> None:
    cut, plain = (compile_application(application) for application in drawn)
    (region,), (whole,) = cut.regions, plain.regions
    assert cut.fingerprint == plain.fingerprint
    assert [operator.name for operator in region.operators] == [operator.name for operator in whole.operators]
    stage_of = {operator.name: stage.name for stage in region.stages for operator in stage.operators}
    assert sorted(stage_of) == sorted(operator.name for operator in region.operators)
    place = {stage.name: number for number, stage in enumerate(region.stages)}
    crossing = set()
    for operator in region.operators:
        for port in operator.inputs:
            assert (port.buffered is None) == (stage_of[port.upstream] == stage_of[operator.name])
            if port.buffered is not None:
                crossing.add((port.upstream, stage_of[operator.name]))
    assert {(channel.upstream, channel.stage_to) for channel in region.channels} == crossing
    assert len(region.channels) == len(crossing)
    assert all(place[channel.stage_from] < place[channel.stage_to] for channel in region.channels)
    assert all(stage.name == stage.operators[0].name for stage in region.stages)
    assert {channel for stage in region.stages for channel in stage.inputs} == set(region.channels)
    assert {channel for stage in region.stages for channel in stage.outputs} == set(region.channels)
    assert all(bool(stage.starts) != bool(stage.inputs) for stage in region.stages)


# --- declaring ----------------------------------------------------------------------------------------------------


def declared(build: Any, **parameters: Any) -> Application:
    with dm.application("app") as declarations:

        @dm.consistent(**{"trigger": "operator-driven", **parameters})
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
        def lines(scanned: Any) -> Any:
            return scanned

        build(lines)
    return dm.build_application(declarations)


def buffered_ports(application: Application) -> dict[str, Any]:
    return {
        operator.name: [port.buffered and (port.stream, port.buffered.batches, port.buffered.bytes)]
        for operator in application.operators
        for port in operator.inputs
    }


def test_a_reader_says_so_in_its_inputs_by_stream_or_name_or_by_annotation() -> None:
    def build(lines: Any) -> None:
        @dm.functor(inputs=[dm.buffered(lines, batches=2)])
        def a(rows: Any) -> Any:
            return rows

        @dm.functor(inputs=[dm.buffered("lines", size="1 MiB")])
        def b(rows: Any) -> Any:
            return rows

        @dm.functor
        def c(lines: Annotated[Any, dm.Buffered]) -> Any:
            return lines

        @dm.functor
        def d(lines: Annotated[Any, dm.Buffered(batches=3)]) -> Any:
            return lines

        @dm.functor(inputs=[dm.buffered(lines, keys=["value"])])
        def keyed(rows: Any) -> Any:
            return rows

        @dm.functor
        def by_hint(lines: Annotated[Any, dm.Buffered(keys="value")]) -> Any:
            return lines

        @dm.parallel_map(output="x string", buffered=True)
        def e(lines: Any) -> Any:
            return {"x": lines["value"]}

        dm.sink(dm.buffered("a"), dm.DeltaAppend("t"), name="f")
        dm.functor(lambda lines: lines, name="g")

    assert buffered_ports(declared(build)) == {
        "a": [("lines", 2, 64_000_000)],
        "b": [("lines", 8, 2**20)],
        "c": [("lines", 8, 64_000_000)],
        "d": [("lines", 3, 64_000_000)],
        "keyed": [("lines", 8, 64_000_000)],
        "by_hint": [("lines", 8, 64_000_000)],
        "e": [("lines", 8, 64_000_000)],
        "f": [("a", 8, 64_000_000)],
        "g": [None],
    }


@pytest.mark.parametrize("wrong", [3, None, ["lines"]])
def test_what_is_no_stream_cannot_be_buffered(wrong: Any) -> None:
    with pytest.raises(UsageError, match="given where a stream is read"):
        dm.buffered(wrong)


@pytest.mark.seed("K6", "E30")
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("name", ["checkpoint_interval", "alignment_timeout", "group_timeout", "linger", "period"])
def test_a_number_that_is_no_duration_is_refused_by_a_rule(name: str, wrong: float) -> None:
    with dm.application("app") as declarations:

        @dm.consistent(trigger="periodic" if name == "period" else "operator-driven", **{name: wrong})
        @dm.source(dm.DirectoryScan(path="in", pattern="*.txt"))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.buffered(lines), dm.DeltaAppend("t"))
    with pytest.raises(DeclarationError, match=re.escape(f"{name}={wrong!r}")):
        compile_application(dm.build_application(declarations))


@pytest.mark.seed("V36", "AU10")
def test_the_bound_on_a_group_has_a_former_name() -> None:
    def annotated(**bounds: Any) -> Any:
        with dm.application("app"):

            @dm.consistent(trigger="operator-driven", **bounds)
            @dm.source(dm.DirectoryScan(path="in", pattern="*.txt"))
            def lines(scanned: Any) -> Any:
                return scanned

        return lines.operator.consistent

    assert annotated(drain_timeout=7.0) == annotated(group_timeout=7.0)
    assert annotated(group_timeout=7.0).group_timeout == dt.timedelta(seconds=7)
    with pytest.raises(UsageError):
        annotated(group_timeout=7.0, drain_timeout=7.0)


@pytest.mark.seed("V18")
def test_a_channel_leads_into_a_composite_inside_it_and_out_of_it() -> None:
    def build(lines: Any) -> None:
        @dm.composite
        def pair(rows: dm.Stream) -> dm.Stream:
            @dm.functor
            def one(rows: Any) -> Any:
                return rows

            two = dm.sql("select * from one", inputs=[dm.buffered("one")], name="two")
            return dm.buffered(two, batches=1)

        pair(dm.buffered(lines), name="left")

        @dm.functor
        def after(left: Any) -> Any:
            return left

    application = declared(build)
    assert buffered_ports(application) == {
        "left_one": [("lines", 8, 64_000_000)],
        "left_two": [("left_one", 8, 64_000_000)],
        "after": [("left_two", 1, 64_000_000)],
    }
    assert application.operator("left_two").inputs[0].parameter == "one"


@pytest.mark.seed("E30", "F29", "K6")
def test_the_region_says_how_it_is_aligned_and_where_its_channels_are() -> None:
    application = declared(
        lambda lines: dm.sink(dm.buffered(lines), dm.DeltaAppend("t")),
        alignment_timeout=2.5, channels="durable", max_inflight_bytes="1 GB", checkpoint_interval=3,
    )  # fmt: skip
    parameters = compile_application(application).regions[0].parameters
    assert parameters.alignment == "aligned"
    assert parameters.alignment_timeout == dt.timedelta(seconds=2.5)
    assert parameters.channels == "durable"
    assert parameters.inflight_bytes_bound == 10**9
    assert parameters.checkpoint_interval == dt.timedelta(seconds=3)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (5, 5), ("5b", 5), ("1.5 kB", 1500), ("64 MB", 64_000_000), ("1 GiB", 2**30), (" 2MiB ", 2**21),
        (0, None), (-1, None), (True, None), (1.5, None), ("", None), ("64", None), ("-1 MB", None), ("1 TB", None),
        ("0.1 b", None), (None, None),
    ],
)  # fmt: skip
def test_sizes_are_read_as_written(given: Any, size: int | None) -> None:
    assert size_of(given) == size


@given(st.integers(1, 10**13))
def test_sizes_are_written_so_that_they_can_be_read(size: int) -> None:
    read = size_of(size_text(size))
    assert read is not None
    assert abs(read - size) <= size / 100


def test_a_control_port_is_no_channel_even_in_a_draft() -> None:
    region = region_of(start(), made(Counter, "a", buffered("start"), control("b")), made(Functor, "b", "a"))
    assert cut_as(region) == [["start"], ["a", "b"]]
