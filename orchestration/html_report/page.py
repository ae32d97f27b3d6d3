"""A region's report as one page of HTML: no script, nothing from outside, light or dark as the browser prefers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from drainmark.jobs.regions.formatting import counted
from drainmark.orchestration.html_report.graph_picture import graph_picture
from drainmark.orchestration.html_report.page_text import (
    NOTHING,
    bytes_text,
    count_text,
    file_text,
    rate_text,
    seconds_text,
    shown,
    time_text,
)
from drainmark.orchestration.html_report.timeline import MARKS, PANELS, STEPS, timeline
from drainmark.orchestration.inspection.desk_links import desk_job, launchpad, orders_in
from drainmark.orchestration.inspection.reads import told_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy of the page: a browser may use only its own style and its icon, which is empty."""

_SUMMARY = (
    ("process_seconds", "process", seconds_text),
    ("drain_seconds", "drain", seconds_text),
    ("checkpoint_seconds", "checkpoint", seconds_text),
    ("publish_seconds", "publish", seconds_text),
    ("rows_in", "rows in", count_text),
    ("bytes_in", "bytes in", bytes_text),
    ("waited_seconds", "age of the file at its commit", seconds_text),
)

Report = Mapping[str, Any]


def page(report: Report, dagster_url: str = "") -> str:
    """Return the page of a report (`inspection/region_report.py`).

    Args:
        dagster_url: address of Dagster's web server, on which remedies are orders of the region's desk; "": of none.
    """
    parts = [
        _header(report),
        *_notices(report, _commands(report, dagster_url)),
        _tiles(report),
        _history(report),
        _graph(report),
        '<div class="two">',
        _summary(report),
        _tables(report),
        "</div>",
        *_stages(report),
        _events(report),
        _quarantine(report),
        _states(report),
        _footer(report),
    ]
    return document(f"{report['region']}: {report['status']['state']}", "\n".join(parts))


def index_page(entries: Sequence[tuple[str, str]]) -> str:
    """Return the page that lists regions, as (name, state)."""
    rows = [[f'<a href="/{shown(name)}">{shown(name)}</a>', _state(state)] for name, state in entries]
    listed = _table((("region", ""), ("state", "")), rows) if rows else "<p>No region has run here yet.</p>"
    return document("Regions", f"<header><h1>Regions</h1></header><section>{listed}</section>")


def document(title: str, body: str) -> str:
    """Return a complete HTML page with a body."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">\n'
        f"<title>{shown(title)}</title>\n<style>{_style()}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text("utf-8")


# --- the top -----------------------------------------------------------------------------------------------------


def _header(report: Report) -> str:
    as_of = f'<span class="as-of">as of {time_text(report["as_of"])} UTC</span>'
    return f"<header><h1>{shown(report['region'])}</h1>{_state(report['status']['state'])}{as_of}</header>"


def _state(state: str) -> str:
    return f'<span class="state {shown(state)}">{shown(state)}</span>'


def _notices(report: Report, commands: str) -> Iterable[str]:
    status = report["status"]
    reads = status["reads"]
    if reads:
        lines = "".join(f"<p>{shown(report['region'])} {shown(told_of(reading))}</p>" for reading in reads)
        yield f'<div class="notice reads">{lines}</div>'
    error = status["last_error"] or {}
    if status["halt_reason"] is not None:
        if error.get("message") == status["halt_reason"]:
            error = {**error, "message": None}
        yield _notice("halted", f"Halted: {shown(status['halt_reason'])}", error, commands, report["folder"])
    elif error:
        tried = f"{status['consecutive_reset_attempts']} of {status['max_consecutive_reset_attempts']}"
        told = f"The last attempt failed ({tried})"
        yield _notice("failing", told, error, commands, report["folder"])
    elif any(reading["stays"] is not None for reading in reads):
        yield _notice("failing", "It goes back before it reads on:", {}, commands, report["folder"])
    elif status["remedies"]:
        told = "Triggers wait, and no process works on the region:"
        yield _notice("waiting", told, {}, commands, report["folder"])


def _commands(report: Report, dagster_url: str) -> str:
    """Return the remedies, each with a link to what it is on the region's desk."""
    region, found = report["region"], []
    for command in report["status"]["remedies"]:
        found.append(f"<code>{shown(command)}</code>")
        for verb, options in orders_in(region, command) if dagster_url else ():
            link = f"{dagster_url.rstrip('/')}{launchpad(region, verb, options)}"
            found.append(f'<a href="{shown(link)}">{shown(desk_job(region))}: {shown(verb)}</a>')
    return "".join(found)


def _notice(kind: str, title: str, error: Mapping[str, Any], commands: str, folder: str | None) -> str:
    lines = []
    if any(error.get(name) for name in ("message", "operator", "trigger")):
        operator = f" in {shown(error['operator'])}" if error.get("operator") else ""
        place = f" ({shown(error['location'])})" if error.get("location") else ""
        file = f" at {file_text(error['trigger'], folder)}" if error.get("trigger") else ""
        lines.append(f"<p>{shown(error.get('message') or '')}{operator}{place}{file}</p>")
    if error.get("remedy"):
        lines.append(f"<p>{shown(error['remedy'])}</p>")
    return f'<div class="notice {kind}"><p><strong>{title}</strong></p>{"".join(lines)}<p>{commands}</p></div>'


def _tiles(report: Report) -> str:
    status, totals, speed = report["status"], report["totals"], report["summary"]["throughput"]
    median = report["summary"]["process_seconds"]["median"]
    lagging = [name for name, number in status["lags"].items() if number < status["committed_sequence_id"]]
    lag = f"lagging: {shown(', '.join(lagging))}" if lagging else "no table lags"
    age = report["summary"]["waited_seconds"]["median"]
    counts = {"rewind": totals["rewinds"], "halt": totals["halts"], "skipped file": totals["skipped"]}
    fell = ", ".join(counted(int(count), what) for what, count in counts.items() if count)
    tiles = [
        ("committed state", count_text(status["committed_sequence_id"]), f"{count_text(totals['states'])} in force"),
        ("shown by all tables", count_text(status["published_sequence_id"]), lag),
        ("pending", count_text(status["pending_triggers"]), "files that wait"),
        ("throughput", f"{rate_text(speed['rows_per_second'])} rows/s", f"{bytes_text(speed['bytes_per_second'])}/s"),
        ("a group takes", seconds_text(median), "median of process"),
        ("age at commit", seconds_text(age), "median, from the file's last change"),
        ("rows in", count_text(totals["rows_in"]), bytes_text(totals["bytes_in"])),
        ("quarantined", count_text(totals["rows_quarantined"]), fell or "no rewind, halt or skip"),
    ]
    alarms = {"quarantined": totals["rows_quarantined"], "shown by all tables": lagging}
    cells = [
        f"<div{' class=alarm' if alarms.get(name) else ''}><dt>{name}</dt><dd>{value}<small>{small}</small></dd></div>"
        for name, value, small in tiles
    ]
    return f'<dl class="tiles">{"".join(cells)}</dl>'


# --- pictures ----------------------------------------------------------------------------------------------------


def _history(report: Report) -> str:
    groups = report["groups"]
    if not groups:
        return _section("Groups", "<p class=quiet>No group was committed yet.</p>")
    series = [one for panel in PANELS if len(panel.series) > 1 for one in panel.series]
    items = [f'<li><i class="{one.style}"></i>{shown(one.label)}</li>' for one in series]
    seen = {event["kind"] for event in report["events"]}
    for style, shape, called in (mark for kind, mark in MARKS.items() if kind in seen):
        drawn = f'<g class="mark {style}"><path d="{shape}"/></g>'
        items.append(f'<li><svg viewBox="-7 -7 14 14" aria-hidden="true">{drawn}</svg>{shown(called)}</li>')
    if any(group["withdrawn"] for group in groups):
        hatched = '<svg viewBox="0 0 14 14" aria-hidden="true"><rect class="gone" width="14" height="14"/></svg>'
        items.append(f"<li>{hatched}withdrawn by a rewind</li>")
    legend = f'<ul class="legend">{"".join(items)}</ul>'
    drawn = timeline(groups, report["events"])
    picture = f'<div class="box newest" tabindex="0" role="region" aria-label="The newest groups">{drawn}</div>'
    return _section(f"The newest {len(groups)} groups", f"{legend}{picture}")


def _graph(report: Report) -> str:
    if report["graph"] is None:
        return ""
    bad = sum(group["rows_quarantined"] for group in report["groups"] if not group["withdrawn"])
    picture = graph_picture(report["graph"], report["operator_rows"], bad)
    box = f'<div class="box" tabindex="0" role="region" aria-label="The graph">{picture}</div>'
    return _section("Graph, with the rows of these groups", box)


# --- tables ------------------------------------------------------------------------------------------------------


def _summary(report: Report) -> str:
    rows = []
    for name, called, text in _SUMMARY:
        spread = report["summary"][name]
        if spread["count"]:
            rows.append([called, *(text(spread[part]) for part in ("min", "median", "p95", "max"))])
    columns = (("", ""), *((part, "n") for part in ("min", "median", "p95", "max")))
    hourly = report["summary"]["throughput"]["states_per_hour"]
    told = (
        f"<p class=quiet>{rate_text(hourly)} states an hour from the first to the last of them.</p>" if hourly else ""
    )
    return _section("A group", _wide(_table(columns, rows)) + told)


def _tables(report: Report) -> str:
    rows = [
        [
            f"<code>{shown(table['table']).replace('/', '/<wbr>')}</code>",
            shown(table["role"]),
            count_text(table["rows"]),
            bytes_text(table["bytes"]),
            _lagging(table["shown_id"], report["status"]["committed_sequence_id"]),
            NOTHING if table["version"] is None else str(table["version"]),
        ]
        for table in report["tables"]
    ]
    columns = (("table", ""), ("role", ""), ("rows", "n"), ("bytes", "n"), ("shows", "n"), ("version", "n"))
    unmet = [[shown(name), count_text(count)] for name, count in report["unmet"].items()]
    more = _wide(_table((("expectation", ""), ("rows that do not meet it", "n")), unmet)) if unmet else ""
    return _section("Tables, with what these groups wrote", _wide(_table(columns, rows)) + more)


def _lagging(shown_id: int, committed: int) -> str:
    return f'<span class="badly">{shown_id}</span>' if shown_id < committed else str(shown_id)


def _stages(report: Report) -> Iterable[str]:
    status = report["status"]
    if not status["stages"]:
        return
    stages = [
        [shown(each["name"]), str(each["through"]), str(each["behind"]), str(each["restarts"])]
        for each in status["stages"]
    ]
    columns = (("stage", ""), ("done up to", "n"), ("states behind", "n"), ("restarts", "n"))
    channels = [
        [shown(each["name"]), count_text(each["batches"]), bytes_text(each["bytes"])] for each in status["channels"]
    ]
    flow = (("channel", ""), ("batches in flight", "n"), ("bytes", "n"))
    parts = _section("Stages", _wide(_table(columns, stages))), _section("Channels", _wide(_table(flow, channels)))
    yield f'<div class="two">{"".join(parts)}</div>'


def _events(report: Report) -> str:
    rows = []
    for event in reversed(report["events"]):
        to = f" to {event['to']}" if event["to"] is not None else ""
        place = ", ".join(shown(event[name]) for name in ("operator", "location") if event[name])
        mark, _, called = MARKS[event["kind"]]
        style = ' class="badly"' if mark in ("fail", "halt") else ""
        rows.append(
            [
                time_text(event["at"]),
                f"<span{style}>{called}{to}</span>",
                NOTHING if event["after_id"] is None else str(event["after_id"]),
                file_text(event["file"], report["folder"]),
                shown(event["message"] or "") + (f" <span class=quiet>({place})</span>" if place else ""),
            ]
        )
    columns = (("when (UTC)", "t"), ("what", ""), ("after id", "n"), ("file", ""), ("why", ""))
    if not rows:
        return _section("Failures, halts, rewinds", "<p class=quiet>None beside these groups.</p>")
    return _section("Failures, halts, rewinds", _tall("Failures, halts, rewinds", columns, rows))


def _quarantine(report: Report) -> str:
    rows = [
        [
            str(each["sequence_id"]),
            file_text(each["file"], report["folder"]),
            count_text(each["rows_in"]),
            count_text(each["rows_quarantined"]),
            shown(each["reason"] or "some rows") + (" (withdrawn)" if each["is_withdrawn"] else ""),
        ]
        for each in reversed(report["quarantine"])
    ]
    if not rows:
        return ""
    columns = (("id", "n"), ("file", ""), ("rows", "n"), ("quarantined", "n"), ("why", ""))
    look = f"<p class=quiet>The rows: <code>drainmark quarantine show {shown(report['region'])}</code></p>"
    return _section("Quarantine", _tall("Quarantine", columns, rows) + look)


def _states(report: Report) -> str:
    groups = {group["last_id"]: group for group in report["groups"]}
    rows = []
    for state in reversed(report["states"]):
        group = groups.get(state["group"][1] if state["group"] else state["sequence_id"], {})
        bad = count_text(state["rows_quarantined"]) if state["rows_quarantined"] else ""
        rows.append(
            [
                str(state["sequence_id"]),
                file_text(state["file"], report["folder"]),
                "..".join(map(str, dict.fromkeys(state["group"] or ()))),
                count_text(state["rows_in"]),
                f'<span class="badly">{bad}</span>',
                bytes_text(state["bytes_in"]),
                *(seconds_text(group.get(f"{step.style}_seconds")) for step in STEPS),
                time_text(state["committed_at"]),
                shown(_remark(state)),
            ]
        )
    numbers = ("rows", "bad", "bytes", *(step.style for step in STEPS))
    numbered = ((each, "n") for each in numbers)
    columns = (("id", "n"), ("file", ""), ("group", "n"), *numbered, ("committed (UTC)", "t"), ("", ""))
    styles = ["withdrawn" if state["is_withdrawn"] else "" for state in reversed(report["states"])]
    told = "<p class=quiet>Seconds are those of the whole group.</p>"
    return _section(f"The newest {len(rows)} states", _tall("The newest states", columns, rows, styles) + told)


def _remark(state: Mapping[str, Any]) -> str:
    remarks = [
        state["reason"],
        "withdrawn" if state["is_withdrawn"] else "",
        "skipped" if state["kind"] == "skip" else "",
    ]
    remarks += [f"replaced by {state['replaced_by']}"] if state["replaced_by"] is not None else []
    remarks += [f"retracted by {state['retracted_by']}"] if state["retracted_by"] is not None else []
    remarks += [f"retracts {state['retracts']}"] if state["retracts"] is not None else []
    return ", ".join(remark for remark in remarks if remark)


def _footer(report: Report) -> str:
    region = shown(report["region"])
    kept = f"{count_text(report['totals']['groups'])} groups are in force."
    window = f"Shown are the newest {len(report['groups'])}, with those that were withdrawn; {kept}"
    verbs = f"<code>drainmark history {region} --all</code>, <code>drainmark report {region} --json</code>"
    return f"<footer>{window} All of it: {verbs}. Home: <code>{shown(report['status']['home'])}</code></footer>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{shown(title)}</h2>{body}</section>"


def _tall(
    label: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
) -> str:
    listed = _table(columns, rows, styles)
    return f'<div class="box tall" tabindex="0" role="region" aria-label="{shown(label)}">{listed}</div>'


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> str:
    """Return a table of cells that are HTML already.

    Args:
        columns: (title, class), `n` for numbers, `t` for times.
        styles: class of each row; empty: no row has a class.
    """
    head = "".join(f'<th scope="col"{_class(style)}>{shown(title)}</th>' for title, style in columns)
    body = []
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        cells = "".join(f"<td{_class(kind)}>{cell}</td>" for cell, (_, kind) in zip(row, columns, strict=True))
        body.append(f"<tr{_class(style)}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _wide(table: str) -> str:
    return f'<div class="box">{table}</div>'


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
