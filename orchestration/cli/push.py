"""The verb that adds rows to the buffer of a start: push."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, RegionName


def push(
    asked: Asked,
    *,
    region: RegionName,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="JSON lines; standard input by default.", show_default=False)
    ] = None,
    start: Annotated[str | None, typer.Option("--start", help="Which start, where several take rows.")] = None,
) -> None:
    """Push rows into the buffer of a ReplayableStart, one JSON object on each line. They are durable when this ends."""
    from drainmark.jobs.regions.formatting import counted
    from drainmark.orchestration.verbs.inputs.push import push_to, region_of, taker_of

    workplace = asked.workplace
    plan = region_of(workplace, region)
    taker, _ = taker_of(plan, start)
    if file is None:
        rows = list(_rows(sys.stdin, "standard input"))
    else:
        try:
            with file.open(encoding="utf-8") as lines:
                rows = list(_rows(lines, str(file)))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    segment = push_to(workplace, plan, rows, start=taker) if rows else None
    if asked.as_json:
        output.emit({"region": plan.name, "rows": len(rows), "segment": segment})
    else:
        output.say(f"{counted(len(rows), 'row')} pushed" + (f", in segment {segment}" if segment is not None else ""))


def _rows(lines: IO[str], name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} of {name} is no JSON: {error}", remedy="nothing was pushed") from error
        if not isinstance(row, dict):
            raise UsageError(f"line {number} of {name} is no JSON object", remedy="nothing was pushed")
        yield row
