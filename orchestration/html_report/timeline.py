"""The picture of a region's newest groups: seconds by step, rows, bytes, speed and age, one above the other.

A group is a column, oldest on the left. Above the columns are marks of failures and halts, and an arc from each rewind
to the state that it returned to. Withdrawn states are hatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.orchestration.html_report.page_text import (
    bytes_text,
    count_text,
    rate_text,
    seconds_text,
    shown,
    time_text,
)

WIDTH = 1120
_LEFT, _RIGHT = 10, 70
_TOP = 58
_GAP = 30
_BAR = 30.0
_TICK = 120.0
_MARKS, _MARK = 4, 15
_FEW = 16
"""Smallest number of groups that take the whole width."""

Group = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One colour of a panel.

    Attributes:
        style: class of the marks.
        value: returns the value of a group; None if it has none.
    """

    style: str
    label: str
    value: Callable[[Group], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of the picture: stacked bars of its series, one for each group; with `is_age`, points on a log scale."""

    title: str
    height: int
    series: tuple[Series, ...]
    text: Callable[[float | None], str]
    is_age: bool = False


def _field(name: str) -> Callable[[Group], float | None]:
    return lambda group: group[name]


def _written(name: str) -> Callable[[Group], float | None]:
    return lambda group: group["written_bytes"][name]


STEPS = tuple(
    Series(style=step, label=label, value=_field(f"{step}_seconds"))
    for step, label in (
        ("process", "process: read and compute"),
        ("drain", "drain: close and compare"),
        ("checkpoint", "checkpoint: the one commit"),
        ("publish", "publish: show it in the tables"),
    )
)
PANELS = (
    Panel(title="Seconds by step", height=130, series=STEPS, text=seconds_text),
    Panel(
        title="Rows in",
        height=72,
        series=(
            Series(style="rows", label="rows", value=lambda group: group["rows_in"] - group["rows_quarantined"]),
            Series(style="bad", label="quarantined", value=_field("rows_quarantined")),
        ),
        text=count_text,
    ),
    Panel(
        title="Bytes written",
        height=72,
        series=(
            Series(style="sinks", label="tables", value=_written("sinks")),
            Series(style="states", label="changes of states", value=_written("states")),
            Series(style="images", label="states written whole", value=_written("images")),
        ),
        text=bytes_text,
    ),
    Panel(
        title="Rows a second of work",
        height=56,
        series=(Series(style="speed", label="rows a second", value=_field("rows_per_second")),),
        text=rate_text,
    ),
    Panel(
        title="Age of the file at its commit",
        height=64,
        series=(Series(style="age", label="age", value=_field("waited_seconds")),),
        text=seconds_text,
        is_age=True,
    ),
)
MARKS = {
    "failed": ("fail", "M-4-4L4 4M4-4L-4 4", "a run failed"),
    "crashed": ("fail", "M-4-4L4 4M4-4L-4 4M0-6V6", "a run was killed"),
    "interrupted": ("calm", "M-3-4V4M3-4V4", "a run was interrupted"),
    "halt": ("halt", "M-5-5H5V5H-5Z", "halted"),
    "resume": ("go", "M-4-5L5 0L-4 5Z", "resumed"),
    "rewind": ("rewind", "M5-5L-4 0L5 5Z", "rewound"),
    "skip": ("calm", "M-5-4L-1 0L-5 4M0-4L4 0L0 4", "a file was skipped"),
    "deploy": ("calm", "M0-5L4 0L0 5L-4 0Z", "other code"),
    "refused": ("calm", "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0M-3-3L3 3", "a file was refused"),
}
"""Kind of an event -> class, shape around (0, 0), and label."""


def timeline(groups: Sequence[Group], events: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture as one `<svg>`, with a title for the whole and one for each column and mark."""
    columns = _Axis(groups)
    parts, top = [], _TOP
    tall = _TOP + sum(panel.height + _GAP for panel in PANELS) - _GAP
    parts += [columns.band(number, tall) for number, group in enumerate(groups) if group["withdrawn"]]
    for panel in PANELS:
        parts += _panel(panel, groups, columns, top)
        top += panel.height + _GAP
    parts += _axis(groups, columns, tall)
    parts += _marks(events, columns, tall)
    parts += [columns.reader(number, tall) for number in range(len(groups))]
    told = f"The newest {len(groups)} groups, oldest first: {', '.join(panel.title for panel in PANELS)}."
    hatch = (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatch" d="M0 0V6"/></pattern></defs>'
    )
    box = f'viewBox="0 0 {WIDTH} {tall + 44}"'
    return f'<svg class="timeline" role="img" {box}><title>{shown(told)}</title>{hatch}{"".join(parts)}</svg>'


@dataclass(frozen=True, slots=True)
class _Axis:
    """The horizontal positions of the groups."""

    groups: Sequence[Group]

    @property
    def slot(self) -> float:
        return (WIDTH - _LEFT - _RIGHT) / max(len(self.groups), _FEW)

    def edge(self, number: int) -> float:
        """Return the left edge of a group. The newest is always at the right; a few groups leave the left empty."""
        return WIDTH - _RIGHT - (len(self.groups) - number) * self.slot

    @property
    def bar(self) -> float:
        return min(_BAR, max(1.0, self.slot * 0.72))

    def middle(self, number: int) -> float:
        return self.edge(number) + self.slot / 2

    def after(self, sequence_id: int | None) -> float:
        """Return the right edge of the group with an id; the left edge of the first group if the id is not shown."""
        for number, group in enumerate(self.groups):
            if sequence_id is not None and group["first_id"] <= sequence_id <= group["last_id"]:
                return self.edge(number + 1)
        return self.edge(0)

    def band(self, number: int, bottom: float) -> str:
        group = self.groups[number]
        width = self.slot * group["withdrawn"] / max(group["states"], 1)
        left = self.edge(number + 1) - width
        place = f'x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{bottom - _TOP}"'
        return f'<rect class="gone" {place}/>'

    def reader(self, number: int, bottom: float) -> str:
        """Return an invisible area over a group whose title has the details."""
        place = f'x="{self.edge(number):.1f}" y="{_TOP}" width="{self.slot:.1f}" height="{bottom - _TOP}"'
        return f'<rect class="reader" {place}><title>{shown_lines(_told(self.groups[number]))}</title></rect>'


def shown_lines(lines: Sequence[str]) -> str:
    return "\n".join(shown(line) for line in lines)


def _told(group: Group) -> list[str]:
    ids = f"{group['first_id']}..{group['last_id']}" if group["states"] > 1 else f"{group['last_id']}"
    lines = [f"{group['kind']} {ids}, committed {time_text(group['committed_at'])}", str(group["file"] or "")]
    if group["withdrawn"]:
        lines.append(f"{group['withdrawn']} of {group['states']} states withdrawn by a rewind")
    bad = f", {count_text(group['rows_quarantined'])} quarantined" if group["rows_quarantined"] else ""
    lines.append(f"{count_text(group['rows_in'])} rows{bad}, {bytes_text(group['bytes_in'])} in")
    lines += [f"{step.style} {seconds_text(step.value(group))}" for step in STEPS]
    lines.append(f"age of the file {seconds_text(group['waited_seconds'])}")
    return [line for line in lines if line]


def _panel(panel: Panel, groups: Sequence[Group], columns: _Axis, top: float) -> list[str]:
    bottom = top + panel.height
    title = f'y="{top - 9}">{shown(panel.title)}</text>'
    parts = [f'<text class="title" x="{_LEFT}" {title}<text class="title again" x="{WIDTH - _RIGHT}" {title}']
    values = [[series.value(group) for series in panel.series] for group in groups]
    known = [sum(value or 0.0 for value in each) for each in values if any(value is not None for value in each)]
    if not any(known):
        empty = f'<text class="quiet" x="{_LEFT + 8}" y="{top + panel.height / 2 + 4}">nothing to show</text>'
        return [*parts, _line(bottom), empty]
    scale = _powers(known, panel.height) if panel.is_age else _even(max(known), panel.height)
    for tick in scale.ticks:
        down = bottom - scale.height(tick)
        parts += [
            _line(down),
            f'<text class="tick" x="{WIDTH - _RIGHT + 8}" y="{down + 4:.1f}">{panel.text(tick)}</text>',
        ]
    for number, (group, each) in enumerate(zip(groups, values, strict=True)):
        old, middle = " old" if group["withdrawn"] else "", columns.middle(number)
        base = bottom
        for series, value in zip(panel.series, each, strict=True):
            style = f"{series.style}{old}"
            if panel.is_age and value is not None:
                parts.append(_point(style, middle, bottom - scale.height(value), columns.slot))
            elif value:
                base -= scale.height(value)
                parts.append(_bar(style, middle - columns.bar / 2, base, columns.bar, scale.height(value)))
    return parts


def _bar(style: str, left: float, top: float, width: float, height: float) -> str:
    size = f'width="{width:.1f}" height="{max(height, 0.6):.1f}"'
    return f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" {size}/>'


def _point(style: str, middle: float, down: float, slot: float) -> str:
    return f'<circle class="{style}" cx="{middle:.1f}" cy="{down:.1f}" r="{min(3.0, max(1.3, slot / 3)):.1f}"/>'


@dataclass(frozen=True, slots=True)
class _Scale:
    """A map from values to heights, and the values that have a line."""

    height: Callable[[float], float]
    ticks: tuple[float, ...]


def _even(largest: float, tall: float) -> _Scale:
    power = 10.0 ** math.floor(math.log10(largest))
    top = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= largest * 0.999)
    return _Scale(lambda value: value / top * tall, (0.0, top / 2, top))


_AGES = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 30 * 86400.0, 365 * 86400.0, 50 * 365 * 86400.0)


def _powers(values: Sequence[float], tall: float) -> _Scale:
    low = max((age for age in _AGES[:-1] if age <= min(values)), default=_AGES[0])
    high = min((age for age in _AGES if age >= max(values) and age > low), default=_AGES[-1])
    across = math.log(high / low)
    between = [age for age in _AGES if low < age < high]
    ticks = (low, *between[:: max(1, math.ceil(len(between) / 2))], high)
    return _Scale(lambda value: min(max(math.log(max(value, low) / low) / across, 0.0), 1.0) * tall, ticks)


def _line(down: float) -> str:
    return f'<path class="grid" d="M{_LEFT} {down:.1f}H{WIDTH - _RIGHT}"/>'


def _axis(groups: Sequence[Group], columns: _Axis, bottom: float) -> list[str]:
    """Return ids and times below the columns; the date only if it differs from the one before."""
    parts, free, date = [], 0.0, ""
    for number, group in enumerate(groups):
        middle = columns.middle(number)
        if middle < max(free, _LEFT + 34) or middle > WIDTH - _RIGHT - 20:
            continue
        free = middle + _TICK
        moment = time_text(group["committed_at"])
        told, date = (moment[11:] if moment[:10] == date else moment[5:]), moment[:10]
        parts.append(f'<path class="grid" d="M{middle:.1f} {bottom}v5"/>')
        parts.append(f'<text class="id" x="{middle:.1f}" y="{bottom + 19}">id {group["last_id"]}</text>')
        parts.append(f'<text class="time" x="{middle:.1f}" y="{bottom + 34}">{told}</text>')
    return parts


def _marks(events: Sequence[Mapping[str, Any]], columns: _Axis, bottom: float) -> list[str]:
    """Return the marks above the columns, lines of failures and halts, and arcs of rewinds."""
    at: dict[float, list[Mapping[str, Any]]] = {}
    for event in events:
        at.setdefault(columns.after(event["after_id"]), []).append(event)
    parts = []
    for place, found in at.items():
        for event in found:
            if event["kind"] == "rewind":
                parts.append(_arc(place, columns.after(event["to"])))
            elif event["kind"] in ("halt", "failed", "crashed"):
                style = MARKS[event["kind"]][0]
                parts.append(f'<path class="stop {style}" d="M{place:.1f} {_TOP - 10}V{bottom}"/>')
        wide = (min(len(found), _MARKS) - 1) * _MARK
        begin = min(max(place - wide / 2, _LEFT + 6.0), WIDTH - 12.0 - wide)
        for number, event in enumerate(found[:_MARKS]):
            style, shape, called = MARKS[event["kind"]]
            across = begin + number * _MARK
            to = f" to {event['to']}" if event["to"] is not None else ""
            lines = [f"{called}{to}, {time_text(event['at'])}", str(event["file"] or ""), str(event["message"] or "")]
            told = shown_lines([line for line in lines if line])
            move = f'transform="translate({across:.1f} {_TOP - 18})"'
            parts.append(f'<g class="mark {style}" {move}><title>{told}</title><path d="{shape}"/></g>')
        if len(found) > _MARKS:
            parts.append(
                f'<text class="more" x="{begin + wide + 10:.1f}" y="{_TOP - 14}">+{len(found) - _MARKS}</text>'
            )
    return parts


def _arc(begin: float, end: float) -> str:
    down, up = _TOP - 26, max(6.0, _TOP - 36 - abs(begin - end) / 8)
    d = f"M{begin:.1f} {down}C{begin:.1f} {up:.1f} {end:.1f} {up:.1f} {end:.1f} {down}"
    return f'<path class="arc" d="{d}"/><path class="arrow" d="M{end:.1f} {down + 8}l-4.5-8h9z"/>'
