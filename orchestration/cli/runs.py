"""Verbs that bring input and process it: run, scan, push."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.jobs.printable import printable, shell_word
from drainmark.orchestration.cli.plan import DropStates
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import (
    AppName,
    Asked,
    Inputs,
    OneRegion,
    RegionName,
    Settings,
    parameters,
)

if TYPE_CHECKING:
    from drainmark.jobs.operators.sources.pushed.push_buffer import RowText
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.autonomous_run import BatchReport
    from drainmark.jobs.runtime.region_run import GroupReport
    from drainmark.orchestration.runs.run_loop import RegionLoop, Watch
    from drainmark.orchestration.workplace.workplace import Opened, Workplace
    from drainmark.resources.spark.session import SparkEngine

_PATIENCE_SECONDS = 30.0


def run(
    asked: Asked,
    *,
    app: AppName = None,
    inputs: Inputs = None,
    settings: Settings = None,
    seconds: Annotated[float, typer.Option("--for", min=0, metavar="SECONDS", help="Keep scanning so long.")] = 0.0,
    max_group: Annotated[
        int | None, typer.Option("--max-group", min=1, help="At most so many triggers in a group.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", min=1, help="End after so many failures in a row; 1: at the first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show plan, pending files, vectorisation.")] = False,
    region: OneRegion = None,
    drop: DropStates = None,
) -> None:
    """Scan, then process until nothing is pending."""
    from drainmark.jobs.regions.formatting import trigger_noun
    from drainmark.jobs.regions.plan import running_parts
    from drainmark.orchestration.runs.interruption import Interruption
    from drainmark.orchestration.runs.part_loop import run_parts
    from drainmark.orchestration.runs.run_loop import RunOptions, run_application
    from drainmark.orchestration.verbs.plan import drop_states
    from drainmark.orchestration.workplace.declaration import named_application

    workplace = asked.workplace
    reference, start = named_application(workplace, app)
    opened = _opened(workplace, reference, parameters(settings), inputs or (), is_counted=not dry_run)
    has_parts = region is None and start is None and bool(running_parts(opened.plan))
    regions = _regions(opened, region, start) if opened.plan.regions or not has_parts else ()
    nouns = {plan.name: trigger_noun(plan) for plan in regions}
    with output.result_only(asked.as_json):
        if dry_run:
            result: Any = _rehearse(workplace, opened, regions)
        else:
            drop_states(workplace, opened, regions, drop or ())
            options = RunOptions(seconds=seconds, max_group=max_group, attempts=attempts)
            with (
                Interruption() as interruption,
                output.while_heard(interruption.event.set),
                _watched(workplace.engine, nouns, as_json=asked.as_json) as watch,
            ):
                run_id = uuid.uuid4().hex
                loops = run_application(
                    workplace, opened, regions, options=options, watch=watch, run_id=run_id, interruption=interruption
                )
                parts = (
                    run_parts(
                        workplace,
                        opened,
                        run_id=run_id,
                        pause=interruption.pause_armed,
                        seconds=0.0 if regions else seconds,
                        on_batch=lambda report: _batch(watch, report),
                        on_rest=watch.on_rest,
                    )
                    if has_parts
                    else []
                )
            _report_assets(workplace, opened, [report for loop in loops for report in loop.reports], run_id)
            result = {**_summary(opened, regions, loops), "autonomous": [part.summary() for part in parts]}
    asked.answer(result, _say_rehearsal if dry_run else partial(_say_summary, nouns=nouns))


def _opened(
    workplace: Workplace, app: str, params: Mapping[str, Any], inputs: Sequence[str], *, is_counted: bool
) -> Opened:
    """Open an application for a run; if it cannot be loaded, count an attempt for each of its known regions."""
    from drainmark.orchestration.runs.failures_before_claim import count_unopened
    from drainmark.orchestration.workplace.schema_files import keep_schemas
    from drainmark.orchestration.workplace.workplace import open_in_time

    try:
        opened = open_in_time(workplace.settings, app, params=params, inputs=inputs)
    except UsageError:  # a fault of the command, not of the code
        raise
    except Exception as error:
        if not is_counted:
            raise
        counted = count_unopened(workplace, app, error)
        raise counted from (error if counted is not error else error.__cause__)
    if is_counted:
        keep_schemas(opened.schemas, workplace.has_states)
    return opened


def _regions(opened: Opened, name: str | None, start: str | None) -> Sequence[RegionPlan]:
    """Return the regions that `--region`, or the START of APP/START, selects; all by default."""

    if name is not None:
        return [opened.region(name)]
    if not opened.plan.regions:
        msg = f"application {opened.plan.name!r} has no consistent region"
        raise UsageError(msg, remedy="put @dm.consistent on a source")
    return opened.regions(start)


def _summary(opened: Opened, regions: Sequence[RegionPlan], loops: Sequence[RegionLoop]) -> dict[str, Any]:
    from drainmark.orchestration.runs.run_loop import summary_of

    turns = [[loop for loop in loops if loop.region.name == plan.name] for plan in regions]
    return {"application": opened.plan.name, "regions": list(map(summary_of, turns))}


def _say_summary(summary: Mapping[str, Any], nouns: Mapping[str, str]) -> None:
    """Print the outcome for each region.

    Args:
        nouns: by region, the noun for its triggers.
    """
    from drainmark.jobs.regions.formatting import counted, said_of

    for entry in summary["regions"]:
        if entry["outcome"] == "processed":
            triggers = counted(entry["triggers"], nouns[entry["region"]])
            numbers = f"{triggers} in {counted(entry['groups'], 'group')}, {counted(entry['rows_in'], 'row')}"
            took = f"{entry['seconds']:.1f} s; committed {entry['committed_sequence_id']}"
            output.say(f"{entry['region']}: {numbers}, {took}")
            if entry["rows_quarantined"]:
                bad = said_of(entry["rows_quarantined"], "row", "were", "was")
                say = f"{bad} quarantined: drainmark quarantine list {shell_word(entry['region'])}"
                output.note(f"{entry['region']}: {say}")
        else:
            output.say(f"{entry['region']}: {entry['outcome']}; committed {entry['committed_sequence_id']}")
        for refused in entry["refused"]:
            output.note(f"{entry['region']}: left out {refused['file']}: {refused['reason']}")
        if entry["unsettled"]:
            growing = said_of(entry["unsettled"], "file", "are", "is")
            output.note(f"{entry['region']}: {growing} still being written to")
    for entry in summary["autonomous"]:
        batches = f"{counted(entry['files'], 'file')} in {counted(entry['batches'], 'batch')}"
        lost = f" ({counted(entry['lost_files'], 'file')} lost)" if entry["lost_files"] else ""
        numbers = f"{batches}{lost}, {counted(entry['rows_in'], 'row')}"
        done = f"{numbers}, {entry['seconds']:.1f} s; {entry['guarantee']}" if entry["batches"] else entry["outcome"]
        output.say(f"{entry['part']}: {done}")


def _batch(watch: Watch, report: BatchReport) -> None:
    watch.on_rest()
    watch.on_note(report.line)


# --- dry run ------------------------------------------------------------------------------------------------------


def _rehearse(workplace: Workplace, opened: Opened, regions: Sequence[RegionPlan]) -> dict[str, Any]:
    from drainmark.jobs.regions.explain import as_json, as_text
    from drainmark.orchestration.verbs.dry_run import rehearse

    found = [rehearse(workplace, opened, region) for region in regions]
    plan = {"plan": as_json(opened.plan), "text": as_text(opened.plan)}
    return {"application": opened.plan.name, **plan, "regions": found}


def _say_rehearsal(result: Mapping[str, Any]) -> None:
    output.say(result["text"])
    for region in result["regions"]:
        output.say("")
        output.say(f"{region['region']}: {region['pending_triggers']} pending, {region['unsettled']} still settling")
        for uri in region["next"]:
            output.say(f"  {uri}")
        for operator, verdict in region["vectorises"].items():
            said = "many triggers at once" if verdict["vectorises"] else f"groups of one: {verdict['reason']}"
            output.say(f"  {operator}: {said}")
    output.say("\nnothing was claimed or committed")


# --- progress -----------------------------------------------------------------------------------------------------


@contextmanager
def _progress(engine: SparkEngine, nouns: Mapping[str, str]) -> Iterator[Watch]:
    """Show the progress of a run on standard error: bars on a terminal that can move its cursor, else a line a group.

    Args:
        nouns: by region, the noun for its triggers.
    """
    from rich.console import Console

    from drainmark.orchestration.runs.run_loop import Watch

    console = Console(stderr=True)
    # If FORCE_COLOR is set, rich treats every stream as a terminal.
    if not (sys.stderr.isatty() and console.is_terminal) or console.is_dumb_terminal:
        with _patience(engine) as heard:

            def on_group(report: GroupReport, pending: int) -> None:
                heard()
                _line(nouns, report, pending)

            yield Watch(on_group=on_group, on_note=output.note, on_rest=heard)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        watch, engine.tell = _bars(bars)
        yield watch


@contextmanager
def _patience(engine: SparkEngine) -> Iterator[Callable[[], None]]:
    """Write a line if a run has nothing to show for long, so that a log has a word about a slow start.

    There is one line at most before the first thing that is shown, and one after each start of Spark that follows.

    Yields:
        a function to call when a group, a batch or a failure has been shown.
    """
    told, tell = ["working on the first group …"], engine.tell

    def waiting() -> threading.Timer:
        timer = threading.Timer(_PATIENCE_SECONDS, lambda: output.note(f"after {_PATIENCE_SECONDS:.0f} s: {told[-1]}"))
        timer.daemon = True
        timer.start()
        return timer

    timer, is_heard = waiting(), False

    def remembered(what: str) -> None:
        nonlocal timer, is_heard
        told.append(what)
        tell(what)
        if is_heard:  # Spark starts again, after a failure
            timer, is_heard = waiting(), False

    def heard() -> None:
        nonlocal is_heard
        is_heard = True
        timer.cancel()

    engine.tell = remembered
    try:
        yield heard
    finally:
        timer.cancel()


def _bars(bars: Any) -> tuple[Watch, Callable[[str], None]]:
    """Return the callbacks for groups, and a function that shows a step before the first group, with a clock."""
    from rich.text import Text

    from drainmark.orchestration.runs.run_loop import Watch

    waiting = bars.add_task("", total=None, visible=False, numbers="")
    tasks: dict[str, Any] = {}
    done: dict[str, int] = {}

    def tell(text: str) -> None:
        bars.reset(waiting, description=printable(text.removesuffix(" …")), visible=True)  # `reset` restarts its clock

    def on_rest() -> None:
        bars.update(waiting, visible=False)

    def on_step(step: str, numbers: Any) -> None:
        if step == "claim" and not tasks:
            tell("processing the first group")

    def on_group(report: GroupReport, pending: int) -> None:
        on_rest()
        if report.region not in tasks:
            tasks[report.region] = bars.add_task(report.region, numbers="")
        done[report.region] = done.get(report.region, 0) + report.triggers
        total = done[report.region] + pending
        rate = f"{report.rows_in / _seconds(report):,.0f} rows/s"
        numbers = f"{done[report.region]}/{total}  id {report.last_id}  {rate}"
        bars.update(tasks[report.region], completed=done[report.region], total=total, numbers=numbers)

    def on_note(text: str) -> None:
        bars.console.print(Text(printable(text)))

    return Watch(on_group=on_group, on_note=on_note, on_step=on_step, on_rest=on_rest), tell


@contextmanager
def _watched(engine: SparkEngine, nouns: Mapping[str, str], *, as_json: bool) -> Iterator[Watch]:
    """Show the progress of a run; people are not told the cause of a halt that they were told before."""
    from drainmark.jobs.errors import Halted

    told: list[str] = []
    try:
        with _progress(engine, nouns) as shown:

            def on_note(text: str) -> None:
                told.append(text)
                shown.on_note(text)

            yield replace(shown, on_note=on_note)
    except Halted as error:
        cause = error.facts.get("cause")
        if not as_json and cause and any(printable(cause) in text for text in told):
            error.message = error.message.removesuffix(f": {cause}") + ", for the cause above"
        raise


def _line(nouns: Mapping[str, str], report: GroupReport, pending: int) -> None:
    from drainmark.jobs.regions.formatting import counted

    ids = f"{report.first_id}..{report.last_id}" if report.triggers > 1 else str(report.first_id)
    bad = f" ({report.rows_quarantined} quarantined)" if report.rows_quarantined else ""
    read = f"{counted(report.triggers, nouns[report.region])}, {counted(report.rows_in, 'row')}{bad}"
    numbers = f"{read}, {_seconds(report):.2f} s, {pending} pending"
    output.note(f"{report.region}: committed {ids} (epoch {report.epoch}): {numbers}")


def _seconds(report: GroupReport) -> float:
    parts = (report.process_seconds, report.drain_seconds, report.checkpoint_seconds, report.publish_seconds)
    return max(sum(parts), 1e-6)


def _report_assets(workplace: Workplace, opened: Opened, reports: Sequence[GroupReport], run_id: str) -> None:
    """Report groups to the Dagster instance of this home, if there is one, as events without a run of Dagster."""
    if not reports:
        return
    from drainmark.orchestration.dagster_assets.runless_events import report

    started = time.monotonic()
    try:
        for region in opened.plan.regions:
            groups = [group for group in reports if group.region == region.name]
            if groups:
                report(groups, region, workplace, run_id)
    except Exception as error:  # all is committed, and an error of the display must not fail the run
        output.note(f"Dagster was not told: {type(error).__name__}: {error} ({time.monotonic() - started:.1f} s)")


# --- scan ---------------------------------------------------------------------------------------------------------


def scan(
    asked: Asked,
    *,
    app: AppName = None,
    inputs: Inputs = None,
    region: OneRegion = None,
) -> None:
    """Scan once and note new input. Processes nothing."""
    from drainmark.jobs.regions.formatting import counted, input_noun
    from drainmark.orchestration.workplace.declaration import named_application
    from drainmark.orchestration.workplace.schema_files import keep_schemas
    from drainmark.orchestration.workplace.workplace import open_in_time

    workplace = asked.workplace
    reference, start = named_application(workplace, app)
    opened = open_in_time(workplace.settings, reference, inputs=inputs or ())
    keep_schemas(opened.schemas, workplace.has_states)
    plans = _regions(opened, region, start)
    found = [_scan(workplace, opened, plan) for plan in plans]
    if asked.as_json:
        output.emit(found)
        return
    for plan, entry in zip(plans, found, strict=True):
        numbers = f"{entry['new']} new, {entry['changed']} changed, {entry['unsettled']} still settling"
        seen = f"{counted(entry['seen'], input_noun(plan))} seen"
        output.say(f"{entry['region']}: {seen}, {numbers}; {entry['pending_triggers']} pending")
        for refused in entry["refused"]:
            output.note(f"{entry['region']}: left out {refused['file']}: {refused['reason']}")


def _scan(workplace: Workplace, opened: Opened, region: RegionPlan) -> dict[str, Any]:
    from drainmark.orchestration.discovery.region_scan import scan_region
    from drainmark.orchestration.workplace.declaration import remember
    from drainmark.orchestration.workplace.region_sources import shown_folder

    found = scan_region(workplace, region)
    remember(workplace, opened, region)
    return {
        "region": region.name,
        "folder": shown_folder(workplace, region),
        "seen": found.seen,
        "new": found.new_count,
        "changed": len(found.changed),
        "unsettled": found.unsettled,
        "refused": [{"file": uri, "reason": reason} for uri, reason in found.refused],
        "pending_triggers": workplace.registry.pending_count(region.name),
    }


# --- push ---------------------------------------------------------------------------------------------------------


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
        rows = list(_pushed(sys.stdin.buffer, "standard input"))
    else:
        try:
            with file.open("rb") as lines:
                rows = list(_pushed(lines, str(file)))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    segment = push_to(workplace, plan, rows, start=taker) if rows else None
    where = f", in segment {segment}" if segment is not None else ""
    pushed = f"{counted(len(rows), 'row')} pushed{where}"
    asked.answer({"region": plan.name, "rows": len(rows), "segment": segment}, lambda _: output.say(pushed))


def _pushed(lines: IO[bytes], name: str) -> Iterator[RowText]:
    from drainmark.jobs.operators.sources.pushed.push_buffer import RowText

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield RowText(line.decode())
        except UnicodeDecodeError as error:
            msg = f"line {number} of {name} is no UTF-8: {error.reason} at byte {error.start + 1}"
            raise UsageError(msg, remedy="write the file in UTF-8; nothing was pushed") from error
        except ValueError as error:
            msg = f"line {number} of {name} cannot be pushed: {error}"
            raise UsageError(msg, remedy="write one JSON object on each line; nothing was pushed") from error
