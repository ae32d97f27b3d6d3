"""Composites: names, ports, annotations; an instance computes the same as its operators written out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import pytest

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, UsageError
from drainmark.jobs.graph.application import Application, application_of
from drainmark.jobs.regions.explain import as_json, as_mermaid, as_text
from drainmark.jobs.regions.plan import ApplicationPlan, compile_application

SCAN = dm.DirectoryScan(path="inbox", pattern="*.txt", format="text")
CONSISTENT = {"trigger": "operator-driven"}


def landing(**facts: Any) -> dm.Stream:
    scan = dm.DirectoryScan(path="inbox", outputs={"left": "l*.txt", "right": "r*.txt"}, format="text")

    def landing(scanned: Any) -> Any:
        return scanned

    return dm.consistent(**{**CONSISTENT, **facts})(dm.source(scan)(landing))


@dm.composite
def counted(lines: dm.Stream, least: int = 1) -> dm.Stream:
    """Count the words of lines."""

    @dm.functor
    def words(lines: Any) -> Any:
        return lines

    @dm.filter
    def frequent(totals: Any) -> Any:
        return dm.F.col("count") >= least

    dm.aggregate(words, keys=["value"], values={"count": dm.count()}, name="totals")
    return frequent


def built(declare: Callable[[], Any]) -> Application:
    with dm.application("demo") as declared:
        declare()
    return dm.build_application(declared)


def compiled(declare: Callable[[], Any]) -> ApplicationPlan:
    return compile_application(built(declare))


def reads(application: Application, name: str) -> list[str]:
    return [port.stream for port in application.operator(name).inputs]


def rules_broken(declare: Callable[[], Any]) -> list[tuple[str | None, str]]:
    with pytest.raises(DeclarationError) as refused:
        compiled(declare)
    return [(violation.operator, violation.rule) for violation in refused.value.violations]


@pytest.mark.seed("V18")
def test_instances_have_operators_of_their_own_connected_by_the_names_inside() -> None:
    def declare() -> None:
        source = landing()
        dm.sink(counted(source["left"], name="left"), dm.DeltaAppend("l"))
        dm.sink(counted("landing__right", least=3, name="right"), dm.DeltaAppend("r"))

    application = built(declare)
    names = [operator.name for operator in application.operators]
    inside = ["words", "frequent", "totals"]
    assert names == ["landing", *(f"left_{n}" for n in inside), "l_sink", *(f"right_{n}" for n in inside), "r_sink"]
    assert reads(application, "left_words") == ["landing[left]"]
    assert reads(application, "right_words") == ["landing[right]"]
    assert reads(application, "right_totals") == ["right_words"]
    assert reads(application, "right_frequent") == ["right_totals"]  # declared before its input
    assert reads(application, "r_sink") == ["right_frequent"]
    assert application.operator("right_words").inputs[0].parameter == "lines"
    assert compile_application(application).region("demo").forced_single == ()


@pytest.mark.seed("V18")
def test_an_instance_computes_what_its_operators_written_out_would() -> None:
    def words(lines: Any) -> Any:
        return lines

    def composed() -> None:
        @dm.composite
        def own(lines: dm.Stream) -> dm.Stream:
            return dm.aggregate(
                dm.functor(words, inputs=[lines]), keys=["value"], values={"n": dm.count()}, name="totals"
            )

        dm.sink(own(landing()["left"], name="own"), dm.DeltaAppend("t"))

    def written_out() -> None:
        first = dm.functor(words, name="own_words", inputs=[landing()["left"]])
        totals = dm.aggregate(first, keys=["value"], values={"n": dm.count()}, name="own_totals")
        dm.sink(totals, dm.DeltaAppend("t"))

    ours, theirs = compiled(composed).region("demo"), compiled(written_out).region("demo")
    for one, other in zip(ours.operators, theirs.operators, strict=True):
        assert (one.name, one.fingerprint()) == (other.name, other.fingerprint())


def test_what_an_instance_is_given_is_part_of_its_fingerprint() -> None:
    def declare(least: int) -> Callable[[], None]:
        return lambda: counted(landing()["left"], least, name="left") and None

    one, two, again = (compiled(declare(least)).region("demo").fingerprints for least in (1, 2, 1))
    assert one == again
    assert {name for name in one if one[name] != two[name]} == {"left_frequent"}


def test_outside_an_instance_is_named_like_an_operator_and_its_outputs_like_outputs() -> None:
    class Both(NamedTuple):
        short: dm.Stream
        long: dm.Stream

    def declare() -> None:
        source = landing()

        @dm.composite
        def cut(lines: dm.Stream) -> Both:
            short = dm.filter(lambda lines: None, name="a", inputs=[lines])
            return Both(short=short, long=dm.filter(lambda lines: None, name="b", inputs=[lines]))

        counted(source["left"])
        cut(source["right"])

        @dm.functor
        def joined(counted: Any, cut__long: Any) -> Any:
            return counted

    application = built(declare)
    assert reads(application, "joined") == ["counted_frequent", "cut_b"]
    assert [instance.name for instance in application.composites] == ["counted", "cut"]


def test_a_composite_inside_another_is_named_through_both_and_passes_outputs_on() -> None:
    @dm.composite
    def twice(rows: dm.Stream) -> dict[str, dm.Stream]:
        first = counted(rows, name="first")

        @dm.functor
        def again(first: Any) -> Any:
            return first

        return {"rows": first, "again": again}

    def declare() -> None:
        twice(landing()["left"])
        dm.sink("twice__rows", dm.DeltaAppend("t"))

    application = built(declare)
    assert reads(application, "twice_first_words") == ["landing[left]"]
    assert reads(application, "twice_again") == ["twice_first_frequent"]
    assert reads(application, "t_sink") == ["twice_first_frequent"]
    assert application.operator("twice_first_words").composite == ("twice", "twice_first")
    entries = {entry["name"]: entry for entry in as_json(compile_application(application))["composites"]}
    assert entries["twice_first"]["inside"] == "twice"
    assert entries["twice"]["operators"] == [
        "twice_first_words", "twice_first_frequent", "twice_first_totals", "twice_again",
    ]  # fmt: skip
    assert entries["twice"]["outputs"] == {"rows": "twice_first_frequent", "again": "twice_again"}


@pytest.mark.seed("V21")
def test_a_loop_through_a_composite_closes_by_a_name_declared_later() -> None:
    @dm.composite
    def limited(rows: dm.Stream, limits: dm.Stream) -> dm.Stream:
        @dm.functor
        def kept(rows: Any, limits: Annotated[Any, dm.Control]) -> Any:
            return rows

        return kept

    def declare() -> None:
        limited(landing()["left"], "worst")

        @dm.functor
        def worst(limited: Any) -> Any:
            return limited

    region = compiled(declare).region("demo")
    classes = {port.stream: str(port.port_class) for port in region.ports if port.operator == "limited_kept"}
    assert classes == {"landing[left]": "consistent data", "worst": "consistent control"}


def test_a_marker_may_use_the_local_names_of_its_place_and_no_unknown_name() -> None:
    """Annotations are texts here, which Python itself does not evaluate."""

    @dm.composite
    def limited(rows: dm.Stream, limits: dm.Stream, keys: list[str]) -> dm.Stream:
        @dm.functor
        def kept(rows: Any, limits: Annotated[Any, dm.Control(keys=keys)]) -> Any:
            return rows

        return kept

    def unknown(left: Any, right: Any) -> Any:
        return left

    unknown.__annotations__["right"] = "Annotated[Any, dm.Control(keys=KEYZ)]"

    def declare() -> None:
        source = landing()
        limited(source["left"], source["right"], ["value"])
        with pytest.raises(UsageError, match="an annotation of unknown uses 'KEYZ'"):
            dm.functor(unknown, inputs=[source["left"], source["right"]])

    ports = built(declare).operator("limited_kept").inputs
    assert [(port.control, port.control_keys) for port in ports] == [(False, ()), (True, ("value",))]


@pytest.mark.seed("V26", "E4")
def test_an_annotation_on_a_composite_is_that_of_its_start_operators() -> None:
    @dm.consistent(trigger="periodic", period=10.0)
    @dm.composite
    def read(table: str) -> dm.Stream:
        def one(scanned: Any) -> Any:
            return scanned

        def two(scanned: Any) -> Any:
            return scanned

        dm.source(SCAN)(one)
        dm.source(dm.DirectoryScan(path="other"))(two)
        dm.lookup("known")

        @dm.functor
        def both(one: Any, two: Any, known: Any) -> Any:
            return one

        return both

    region = compiled(lambda: dm.sink(read("t"), dm.DeltaAppend("t"))).region("demo")
    assert [operator.name for operator in region.starts] == ["read_one", "read_two"]
    assert [operator.name for operator in region.feeds] == ["read_known"]
    assert region.parameters.period is not None


@pytest.mark.seed("E5", "V49")
def test_an_operators_own_annotation_beats_its_composites_and_the_inner_composites_the_outer() -> None:
    @dm.composite
    def inner(rows: dm.Stream) -> None:
        dm.functor(lambda rows: rows, name="in", inputs=[rows])

    @dm.composite
    def outer(rows: dm.Stream) -> None:
        dm.autonomous(inner)(rows, name="out")
        inner(rows, name="stays")
        dm.functor(lambda rows: rows, name="plain", inputs=[rows])

    @dm.consistent(trigger="operator-driven")
    @dm.composite
    def all_of_it() -> None:
        source = dm.source(SCAN)(named("source"))
        dm.autonomous(dm.source(SCAN)(named("side")))
        outer(source)

    plan = compiled(all_of_it)
    assert [operator.name for operator in plan.regions[0].operators] == [
        "all_of_it_source", "all_of_it_outer_stays_in", "all_of_it_outer_plain",
    ]  # fmt: skip
    outside = [operator.name for part in plan.autonomous for operator in part.operators]
    assert sorted(outside) == ["all_of_it_outer_out_in", "all_of_it_side"]


@pytest.mark.seed("E5", "V26")
def test_annotating_one_instance_leaves_the_composite_as_it_was() -> None:
    def declare() -> None:
        source = landing()
        dm.autonomous(counted)(source["left"], name="outside")
        counted(source["left"], name="inside")

    plan = compiled(declare)
    assert {operator.composite for operator in plan.regions[0].operators} == {(), ("inside",)}
    assert [[operator.composite for operator in part.operators] for part in plan.autonomous] == [[("outside",)] * 3]


@pytest.mark.seed("V41")
def test_operator_driven_copies_whose_regions_merge_are_refused() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.composite
    def copy() -> dm.Stream:
        return dm.source(SCAN)(named("files"))

    def declare() -> None:
        copy(name="a")
        copy(name="b")

        @dm.functor
        def both(a: Any, b: Any) -> Any:
            return a

    assert rules_broken(declare) == [("b_files", "SECOND_START_IN_OPERATOR_DRIVEN")]


def named(name: str) -> Callable[[Any], Any]:
    def read(scanned: Any) -> Any:
        return scanned

    read.__name__ = name
    return read


def test_names_that_meet_are_refused_once_and_by_the_instance() -> None:
    def twice() -> None:
        source = landing()
        counted(source["left"])
        counted(source["right"])

    def as_operator() -> None:
        source = landing()
        counted(source["left"], name="a")
        dm.functor(lambda rows: rows, name="a_words", inputs=[source["left"]])
        dm.functor(lambda rows: rows, name="a", inputs=[source["left"]])

    assert rules_broken(twice) == [("counted", "DUPLICATE_NAME")]
    assert rules_broken(as_operator) == [("a_words", "DUPLICATE_NAME"), ("a", "DUPLICATE_NAME")]
    assert rules_broken(lambda: counted(landing()["left"], name="a b")) == [("a b", "BAD_NAME")]


def test_an_operator_on_outputs_has_a_name_by_default() -> None:
    def declare() -> None:
        source = landing()
        left, right = source["left"], source["right"]
        dm.union(left, right)
        dm.aggregate(left, keys=["value"], values={"count": dm.count()})
        dm.join(left, right, on=["value"], kind="latest")
        dm.barrier(left, right, keys=["value"])
        dm.parse(left, "value", format="line")

    assert [operator.name for operator in compiled(declare).application.operators[1:]] == [
        "union_of_landing_left_landing_right",
        "landing_left_by_value",
        "landing_left_with_landing_right",
        "barrier_of_landing_left_landing_right",
        "landing_left_parsed",
    ]


@pytest.mark.seed("V26", "E4", "E5")
def test_an_annotation_that_reaches_no_start_or_meets_another_is_refused() -> None:
    @dm.composite
    def empty() -> None:
        return None

    both = dm.autonomous(dm.consistent(**CONSISTENT)(counted))
    assert rules_broken(lambda: (landing(), dm.autonomous(empty)())) == [("empty", "COMPOSITE_WITHOUT_START")]
    found = rules_broken(lambda: both(landing()["left"], name="x"))
    assert ("x_words", "BOTH_ANNOTATIONS") in found


@pytest.mark.seed("E6")
def test_a_composite_cannot_start_a_region_at_what_handles_tuples() -> None:
    def declare() -> None:
        dm.consistent(**CONSISTENT)(counted)(landing()["left"], name="x")

    assert rules_broken(declare) == [("x_words", "START_KIND")]


def test_a_composite_sees_only_its_parameters() -> None:
    @dm.composite
    def peeking() -> None:
        @dm.functor
        def peek(landing: Any) -> Any:
            return landing

    def declare() -> None:
        landing()
        peeking()

    assert rules_broken(declare) == [("peeking_peek", "UNKNOWN_UPSTREAM")]


def test_what_is_no_stream_cannot_be_returned_and_name_is_the_instances() -> None:
    @dm.composite
    def wrong() -> Any:
        return 1

    with pytest.raises(UsageError) as refused:
        built(wrong)
    assert "'wrong'" in refused.value.message
    with pytest.raises(UsageError):
        dm.composite(lambda name: None)


def test_a_composite_of_another_module_declares_into_the_module_that_uses_it() -> None:
    module = ModuleType("uses_counted")
    module.__file__ = "uses_counted.py"
    module.__dict__.update(dm=dm, counted=counted, landing=landing)
    sys.modules[module.__name__] = module
    exec("landing_ = dm.lookup('x', name='landing')\ncounted(landing_, name='mine')", module.__dict__)  # noqa: S102
    assert application_of(module).operators[0].name == "landing"
    assert application_of(module).composites[0].name == "mine"
    assert not hasattr(sys.modules[__name__], "__drainmark__")


def test_graph_shows_instances_as_groups() -> None:
    def declare() -> None:
        source = landing()
        counted(source["left"], name="left")
        dm.autonomous(counted)(source["right"], name="right")

    plan = compiled(declare)
    assert as_text(plan).count("counted") == 2
    assert any(line.split()[:3] == ["right", "counted", "autonomous"] for line in as_text(plan).splitlines())
    lines = as_mermaid(plan).splitlines()
    assert lines.index('    subgraph r0_0["left"]') < lines.index('      n1["left_words"]')
    assert '  subgraph a0_0["right"]' in lines
    assert sum(line.strip().startswith("subgraph ") for line in lines) == sum(line.strip() == "end" for line in lines)
    operators = {entry["name"]: entry["composite"] for entry in as_json(plan)["regions"][0]["operators"]}
    assert operators == {"landing": None, "left_words": "left", "left_frequent": "left", "left_totals": "left"}
