"""Small inline SVG charts: horizontal bars, a stacked bar, lines. Colours are CSS variables, so a page can be dark.

Each function returns one `<svg>` with a title for screen readers, and a `<title>` on each mark as its tooltip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720
_LEFT = 230
_RIGHT = 90
_ROW = 30
_SERIES = 6
"""Number of colours that the page defines: `--series-0` and the next ones."""
_LEGEND = 3
"""Number of names in a row below a chart of lines."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its length, and the extremes of the rounds if there are several.

    Attributes:
        text: the figure as text with its unit.
        is_ours: the bar has the first colour.
    """

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line: points from left to right; `band` is empty, or has a pair (low, high) for each point."""

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Return horizontal bars from zero, with whiskers for the spread of the rounds."""
    largest = max((row.high or row.value for row in rows), default=0) or 1
    scale = (WIDTH - _LEFT - _RIGHT) / largest
    parts = []
    for number, row in enumerate(rows):
        top = number * _ROW
        length = max(row.value * scale, 1)
        middle = top + _ROW / 2
        parts.append(_text(_LEFT - 10, middle + 4, row.label, anchor="end", strong=row.is_ours))
        parts.append(_rect(_LEFT, top + 6, length, _ROW - 12, 0 if row.is_ours else 1, f"{row.label}: {row.text}"))
        end = _LEFT + length
        if row.low is not None and row.high is not None and row.high > row.low:
            left, right = _LEFT + row.low * scale, _LEFT + row.high * scale
            parts.append(f'<path class="whisker" d="M{left:.1f} {middle}H{right:.1f}'
                         f'M{left:.1f} {middle - 4}v8M{right:.1f} {middle - 4}v8"/>')  # fmt: skip
            end = max(end, right)
        parts.append(_text(end + 8, middle + 4, row.text))
    return _svg(title, len(rows) * _ROW, parts)


def stacked(title: str, steps: Mapping[str, float], unit: str) -> str:
    """Return one bar of parts, largest first, with a legend below."""
    ordered = sorted(steps.items(), key=lambda item: -item[1])
    kept = ordered[: _SERIES - 1]
    if rest := sum(value for _, value in ordered[_SERIES - 1 :]):
        kept.append(("the rest", rest))
    whole = sum(steps.values()) or 1
    parts, left = [], 0.0
    for number, (name, value) in enumerate(kept):
        length = value / whole * WIDTH
        parts.append(_rect(left, 4, max(length - 1, 0.5), 30, number, f"{name}: {value:.1f} {unit}"))
        left += length
        x, y = (number % 3) * WIDTH / 3, 58 + number // 3 * 22
        parts.append(_rect(x, y - 11, 12, 12, number, name))
        parts.append(_text(x + 18, y, f"{name} {value:.1f} {unit}, {value / whole:.0%}"))
    return _svg(title, 64 + (len(kept) - 1) // 3 * 22, parts)


def lines(title: str, series: Sequence[Line], *, x: str, y: str, aim: float | None = None) -> str:
    """Return lines over evenly spaced x values; y is in percent, from at most 88 up to at least 100.

    Args:
        aim: the height of a dashed line.
    """
    places = sorted({point[0] for line in series for point in line.points})
    heights = [value for line in series for value in (*(p[1] for p in line.points), *(b for p in line.band for b in p))]
    floor = min(0.9, *heights) - 0.02 if heights else 0.0
    ceiling = max(1.0, *heights) if heights else 1.0
    height, left, right, bottom = 260, 60, 36, 40
    across = (WIDTH - left - right) / max(len(places) - 1, 1)

    def at(place: float, value: float) -> tuple[float, float]:
        return left + places.index(place) * across, 10 + (ceiling - value) / (ceiling - floor) * (height - 10)

    parts = []
    for step in range(5):
        value = floor + (ceiling - floor) * step / 4
        _, down = at(places[0], value) if places else (0, 0)
        parts.append(f'<path class="grid" d="M{left} {down:.1f}H{WIDTH - right}"/>')
        parts.append(_text(left - 8, down + 4, f"{value:.0%}", anchor="end"))
    if aim is not None and places:
        _, down = at(places[0], aim)
        parts.append(f'<path class="aim" d="M{left} {down:.1f}H{WIDTH - right}"/>')
    parts += [_text(at(place, floor)[0], height + 18, f"{place:g} {x}", anchor="middle") for place in places]
    for number, line in enumerate(series):
        path = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in line.points)
        if line.band:
            there = [at(point[0], band[1]) for point, band in zip(line.points, line.band, strict=True)]
            back = [at(point[0], band[0]) for point, band in zip(line.points, line.band, strict=True)]
            area = " ".join(f"{across_:.1f},{down:.1f}" for across_, down in [*there, *reversed(back)])
            parts.append(f'<polygon class="band s{number}" points="{area}"/>')
        parts.append(f'<polyline class="line s{number}" points="{path}"/>')
        for point in line.points:
            across_, down = at(*point)
            parts.append(f'<circle class="fill{number}" cx="{across_:.1f}" cy="{down:.1f}" r="4">'
                         f"<title>{escape(line.label)}, {point[0]:g} {x}: {point[1]:.1%}</title></circle>")  # fmt: skip
        row, column = divmod(number, _LEGEND)
        across_, down = left + column * 200, height + 32 + row * 22
        parts.append(_rect(across_, down, 12, 12, number, line.label))
        parts.append(_text(across_ + 18, down + 11, line.label))
    return _svg(f"{title} ({y})", height + bottom + 12 + (len(series) - 1) // _LEGEND * 22, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    marks = "".join(parts)
    size = f'viewBox="0 0 {WIDTH} {height:.0f}"'
    return f'<svg role="img" {size} aria-label="{escape(title)}"><title>{escape(title)}</title>{marks}</svg>'


def _rect(x: float, y: float, width: float, height: float, series: int, said: str) -> str:  # noqa: PLR0917
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"'
    return f'<rect class="fill{series % _SERIES}" {place}><title>{escape(said)}</title></rect>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", strong: bool = False) -> str:
    weight = ' class="strong"' if strong else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
