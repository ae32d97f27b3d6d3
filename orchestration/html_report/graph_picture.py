"""The compiled graph of a region as a picture: operators from left to right, with their numbers of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.orchestration.html_report.page_text import count_text, shown

_WIDE, _TALL = 196, 50
_ACROSS, _DOWN = 44, 14
_MARGIN = 8
_NAME = 22


@dataclass(frozen=True, slots=True)
class _Edge:
    upstream: str
    operator: str
    style: str


def graph_picture(graph: Mapping[str, Any], rows: Mapping[str, int], quarantined: int) -> str:
    """Return the picture as one `<svg>`.

    Args:
        graph: an entry of `regions` of `graph --json`.
        rows: number of rows by the name of an operator.
        quarantined: rows that the starts could not read.
    """
    operators = graph["operators"]
    edges = _edges(operators)
    places = _places([operator["name"] for operator in operators], edges)
    width = max(left for left, _ in places.values()) + _WIDE + _MARGIN
    height = max(top for _, top in places.values()) + _TALL + _MARGIN
    parts = [_edge(edge, places) for edge in edges]
    stages = {name: stage["stage"] for stage in graph["stages"] for name in stage["operators"]}
    for operator in operators:
        stage = stages.get(operator["name"], "") if len(graph["stages"]) > 1 else ""
        parts.append(_box(operator, places[operator["name"]], _counts(operator, rows, quarantined), stage))
    told = f"The graph of {graph['region']}: " + "; ".join(_sentence(operator) for operator in operators)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg class="graph" role="img" {size}><title>{shown(told)}</title>{"".join(parts)}</svg>'


def _sentence(operator: Mapping[str, Any]) -> str:
    read = ", ".join(port["stream"] for port in operator["ports"])
    return f"{operator['name']} ({operator['kind']}){f' reads {read}' if read else ''}"


def _edges(operators: Sequence[Mapping[str, Any]]) -> list[_Edge]:
    names = {operator["name"] for operator in operators}
    found = []
    for operator in operators:
        for port in operator["ports"]:
            upstream = port["stream"].partition("[")[0]
            if upstream in names:
                style = "control" if "control" in (port["class"] or "") else "data"
                found.append(_Edge(upstream, operator["name"], "buffered" if port["is_buffered"] else style))
    return found


def _places(names: Sequence[str], edges: Sequence[_Edge]) -> dict[str, tuple[float, float]]:
    """Return left and top by name: an operator is in a column after its upstreams, at the mean of their rows or below.

    Args:
        names: in topological order, except edges that close a loop.
    """
    order = {name: number for number, name in enumerate(names)}
    above: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        if order[edge.upstream] < order[edge.operator]:  # an edge that closes a loop places nothing
            above[edge.operator].append(edge.upstream)
    column: dict[str, int] = {}
    for name in names:
        column[name] = max((column[upstream] + 1 for upstream in above[name]), default=0)
    row: dict[str, float] = {}
    for number in range(max(column.values(), default=0) + 1):
        mine = [name for name in names if column[name] == number]
        wished = {name: sum(row[each] for each in above[name]) / max(len(above[name]), 1) for name in mine}
        lowest = -1.0
        for name in sorted(mine, key=lambda name: (wished[name], order[name])):
            row[name] = lowest = max(wished[name], lowest + 1)
    return {name: (_MARGIN + column[name] * (_WIDE + _ACROSS), _MARGIN + row[name] * (_TALL + _DOWN)) for name in names}


def _edge(edge: _Edge, places: Mapping[str, tuple[float, float]]) -> str:
    left, top = places[edge.upstream]
    right, bottom = places[edge.operator]
    begin, end = left + _WIDE, right
    up, down = top + _TALL / 2, bottom + _TALL / 2
    bend = max(24.0, (end - begin) / 2)
    path = f"M{begin:.0f} {up:.0f}C{begin + bend:.0f} {up:.0f} {end - bend:.0f} {down:.0f} {end - 7:.0f} {down:.0f}"
    tip = f'<path class="tip" d="M{end:.0f} {down:.0f}l-8-4v8z"/>'
    return f'<path class="edge {edge.style}" d="{path}"/>{tip}'


def _counts(operator: Mapping[str, Any], rows: Mapping[str, int], quarantined: int) -> list[tuple[str, str]]:
    found = []
    if (count := rows.get(operator["name"])) is not None:
        found.append(("count", f"{count_text(count)} {'rows in' if operator['is_start'] else 'rows written'}"))
    if operator["is_start"] and quarantined:
        found.append(("bad", f"{count_text(quarantined)} bad"))
    return found


def _box(operator: Mapping[str, Any], place: tuple[float, float], counts: Sequence[tuple[str, str]], stage: str) -> str:
    left, top = place
    roles = [role for role in ("start", "end", "stateful", "feed") if operator[f"is_{role}"]]
    name = operator["name"] if len(operator["name"]) <= _NAME else f"{operator['name'][: _NAME - 1]}…"
    told = [f"{operator['name']}: {operator['kind']}, {operator['location']}", *(text for _, text in counts)]
    second = f'<tspan class="kind">{shown(operator["kind"])}</tspan>'
    if counts:
        second = " · ".join(f'<tspan class="{style}">{shown(text)}</tspan>' for style, text in counts)
    elif stage:
        second += f'<tspan class="kind"> · stage {shown(stage)}</tspan>'
    stripe = f'<rect class="stripe" x="{left}" y="{top}" width="5" height="{_TALL}" rx="2"/>'
    return (
        f'<g class="operator {" ".join(roles)}"><title>{shown("; ".join(told))}</title>'
        f'<rect class="box" x="{left}" y="{top}" width="{_WIDE}" height="{_TALL}" rx="7"/>{stripe if roles else ""}'
        f'<text class="name" x="{left + 14}" y="{top + 21}">{shown(name)}</text>'
        f'<text class="second" x="{left + 14}" y="{top + 38}">{second}</text></g>'
    )
