"""Any graph: a region is all that its starts reach, less carve-outs; its order is topological; compiling is stable."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import PERIODIC, Beacon, Functor, app, control, made

from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.regions.reachability import graph_of, loop_through, loops


@dataclass(frozen=True)
class Drawn:
    application: Application
    parents: dict[str, set[str]]
    starts: set[str]
    carved: set[str]


@st.composite
def acyclic(draw: st.DrawFn) -> Drawn:
    """Draw a graph of up to 12 operators, some without inputs, some annotated, declared in any order."""
    count = draw(st.integers(1, 12))
    operators: list[Operator] = []
    parents: dict[str, set[str]] = {}
    starts, carved = set(), set()
    for index in range(count):
        name = f"op{index}"
        earlier = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        parents[name] = {f"op{number}" for number in earlier}
        annotation = draw(st.sampled_from(["", "", "", "consistent", "autonomous"]))
        if annotation == "consistent":
            starts.add(name)
        elif annotation == "autonomous":
            carved.add(name)
        operators.append(
            made(
                Beacon if not earlier or annotation == "consistent" else Functor,
                name,
                *sorted(parents[name]),
                consistent=PERIODIC if annotation == "consistent" else None,
                autonomous=annotation == "autonomous",
            )
        )
    return Drawn(app(*draw(st.permutations(operators))), parents, starts, carved)


def reached_by_definition(drawn: Drawn) -> set[str]:
    """Return the operators that are starts, or that are not carved out and have a consistent upstream."""
    found: set[str] = set()
    for name, upstream in drawn.parents.items():  # upstreams come first
        if name in drawn.starts or (name not in drawn.carved and upstream & found):
            found.add(name)
    return found


@pytest.mark.seed("V24", "V28", "V45", "V50", "V13")
@settings(max_examples=examples(150), deadline=None)
@given(acyclic())
def test_regions_are_what_the_starts_reach_less_the_carve_outs(drawn: Drawn) -> None:
    plan = compile_application(drawn.application)
    regions = [{operator.name for operator in region.operators} for region in plan.regions]
    outside = [operator.name for part in plan.autonomous for operator in part.operators]
    consistent = [name for members in regions for name in members]
    assert set(consistent) == reached_by_definition(drawn)
    assert sorted(consistent + outside) == sorted(drawn.parents)
    for members, region in zip(regions, plan.regions, strict=True):
        assert {operator.name for operator in region.starts} == members & drawn.starts
        for name in members - drawn.starts:
            assert drawn.parents[name] & members
        for name in members:
            foreign = (drawn.parents[name] & set(consistent)) - members
            assert not foreign or name in drawn.starts
        needed = {parent for name in region.run_order for parent in drawn.parents[name.name]} - set(consistent)
        assert needed <= {operator.name for operator in region.feeds} <= set(outside)


@pytest.mark.seed("V30", "E4")
@settings(max_examples=examples(100), deadline=None)
@given(acyclic())
def test_regions_share_nothing_and_merging_them_once_more_changes_nothing(drawn: Drawn) -> None:
    plan = compile_application(drawn.application)
    regions = [{operator.name for operator in region.operators} for region in plan.regions]
    for index, members in enumerate(regions):
        assert all(members.isdisjoint(other) for other in regions[index + 1 :])
    for region, members in zip(plan.regions, regions, strict=True):
        inside = [
            replace(operator, inputs=tuple(port for port in operator.inputs if port.upstream in members))
            for operator in drawn.application.operators
            if operator.name in members
        ]
        (again,) = compile_application(app(*inside)).regions
        assert {operator.name for operator in again.operators} == members
        assert (again.name, again.parameters) == (region.name, region.parameters)


@pytest.mark.seed("V24", "V30")
@settings(max_examples=examples(100), deadline=None)
@given(acyclic(), st.permutations(range(12)))
def test_operators_of_other_names_are_in_the_same_regions(drawn: Drawn, numbers: list[int]) -> None:
    other = {f"op{index}": f"named{number}" for index, number in enumerate(numbers)}
    renamed = [
        replace(operator, name=other[operator.name],
                inputs=tuple(replace(port, upstream=other[port.upstream]) for port in operator.inputs))
        for operator in drawn.application.operators
    ]  # fmt: skip
    plan, again = compile_application(drawn.application), compile_application(app(*renamed))
    for one, same in zip(plan.regions, again.regions, strict=True):
        for part in ("operators", "starts", "ends", "feeds"):
            assert {other[operator.name] for operator in getattr(one, part)} == {
                operator.name for operator in getattr(same, part)
            }


@pytest.mark.seed("V87")
@settings(max_examples=examples(100), deadline=None)
@given(acyclic())
def test_every_order_is_topological(drawn: Drawn) -> None:
    plan = compile_application(drawn.application)
    for order in [region.run_order for region in plan.regions] + [part.operators for part in plan.autonomous]:
        place = {operator.name: index for index, operator in enumerate(order)}
        for name, index in place.items():
            assert all(place[parent] < index for parent in drawn.parents[name] if parent in place)


@settings(max_examples=examples(100), deadline=None)
@given(acyclic(), st.randoms(use_true_random=False))
def test_compiling_is_stable_and_blind_to_the_order_of_declaration(drawn: Drawn, random: object) -> None:
    plan = compile_application(drawn.application)
    assert compile_application(drawn.application) == plan
    moved = list(drawn.application.operators)
    random.shuffle(moved)  # type: ignore[attr-defined]
    again = compile_application(app(*moved))
    assert {region.name: region.fingerprint for region in again.regions} == {
        region.name: region.fingerprint for region in plan.regions
    }
    assert again.fingerprint == plan.fingerprint


@pytest.mark.seed("V21", "E6")
@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(1, 8).flatmap(
        lambda count: st.lists(
            st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.booleans()), max_size=12, unique=True
        ).map(lambda links: (count, links))
    )
)
def test_loops_are_found_wherever_an_operator_reaches_itself(drawn: tuple[int, list[tuple[int, int, bool]]]) -> None:
    count, links = drawn
    graph = graph_of(
        app(
            *(
                made(
                    Functor,
                    f"op{target}",
                    *(control(f"op{s}") if is_control else f"op{s}" for s, t, is_control in links if t == target),
                )
                for target in range(count)
            )
        )
    )
    for edges in (graph.downstream, graph.data_downstream):
        reaches = {name: set(others) for name, others in edges.items()}
        for _ in range(count):
            for further in reaches.values():
                further.update(*(reaches[other] for other in tuple(further)))
        looping = {name for name in reaches if name in reaches[name]}
        assert {name for name in edges if loop_through(name, edges)} == looping
        assert bool(loops(edges)) == bool(looping)
        for loop in loops(edges):
            assert all(after in edges[name] for name, after in zip(loop, (*loop[1:], loop[0]), strict=True))
    assert sorted(graph.order) == sorted(graph.operators)
    if not loops(graph.data_downstream):
        place = {name: index for index, name in enumerate(graph.order)}
        assert all(place[name] < place[other] for name in graph.order for other in graph.data_downstream[name])
