"""The run of a region as one op: claim, groups, hand-over, by the same code as on the command line."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dagster as dg

from drainmark.jobs.errors import DrainmarkError, InputChanged, InputMissing, Interrupted, Owned, UsageError
from drainmark.jobs.failpoints import arm_from_environment
from drainmark.jobs.graph.annotations import Runs
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.printable import printable
from drainmark.jobs.protocol.failure_policy import attempts_after, is_lifted
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.regions.formatting import counted, trigger_noun
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.messages import halted_error
from drainmark.jobs.runtime.region_run import GroupReport, RegionRun
from drainmark.orchestration.dagster_assets.assets import (
    checkpoint_key,
    materializations,
    observations,
    table_assets,
)
from drainmark.orchestration.dagster_assets.checks import evaluations
from drainmark.orchestration.dagster_assets.event_pacing import EventPace
from drainmark.orchestration.dagster_assets.instance import remember_instance
from drainmark.orchestration.dagster_assets.metadata import (
    DATA_VERSION_TAG,
    IDS_TAG,
    MAX_RETRIES_TAG,
    QUEUED_TAG,
    flow_metadata,
    group_metadata,
    groups_table,
    standing_metadata,
)
from drainmark.orchestration.dagster_assets.partitions import Partitions, remember_partitions
from drainmark.orchestration.dagster_assets.provenance import Provenance
from drainmark.orchestration.dagster_assets.translator import Keys, remember_keys, renamed
from drainmark.orchestration.dagster_jobs.pulse import Pulse
from drainmark.orchestration.dagster_jobs.run_config import require_short
from drainmark.orchestration.dagster_jobs.run_endings import end_with, failure_of, note, tag_begun
from drainmark.orchestration.dagster_jobs.run_monitor import (
    SENSOR_TAG,
    RegionRuns,
    counted_tag,
    run_tags,
    tag_after_op,
    tag_process,
)
from drainmark.orchestration.dagster_jobs.run_slot import RunSlot, run_slot
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.discovery.source_watch import SourceWatch
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.inspection.metrics import present_of
from drainmark.orchestration.runs.failures_before_claim import claim_and_halt, count_failure, origin_of
from drainmark.orchestration.runs.idle_wait import CodeFiles, Lingering, linger_seconds
from drainmark.orchestration.runs.interruption import ending_gracefully, watch_parent
from drainmark.orchestration.runs.preparation import analysed_run, tried_first_use
from drainmark.orchestration.runs.region_runs import end_predecessor
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.inputs.backfill import Wanted
from drainmark.orchestration.verbs.orders import Order
from drainmark.orchestration.workplace.application_identity import code_digest
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.hand_off import Requests, claim_asking
from drainmark.orchestration.workplace.schema_files import keep_schemas
from drainmark.orchestration.workplace.workplace import Opened, Workplace, living_owner, open_in_time
from drainmark.resources.spark.session_settings import have_utc

GROUPS = "groups"

PATIENCE_SECONDS = 600.0
"""How long a run of partitions waits for the region, while another run works or lingers."""

_LOOK_SECONDS = 0.5

_WORKERS = [["api", command] for command in ("execute_run", "resume_run", "execute_step")]
"""Arguments of the process of a run or of an op in a container; see `dagster api`."""


AssetEvent = dg.AssetMaterialization | dg.AssetObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSteps:
    """The op of one region.

    Attributes:
        reference: of its application, as on the command line.
        keys: those of assets that a translator changed.
        provenance: what the events say about the making of the tables.
        partitions: those of the tables; None if they have none.
    """

    workplace: Workplace
    reference: str
    region: RegionPlan
    keys: Keys = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    partitions: Partitions | None = None

    def run(self, context: dg.OpExecutionContext) -> Iterator[AssetEvent | dg.MaterializeResult[None]]:
        """Claim the region, process what is pending with an event for each table and group, and hand over.

        It is one op, so that the run of a region is in one process, whatever executes the op.
        """
        try:
            with run_slot(context.log) as slot:
                wanted = _asked_partitions(context, self.partitions)
                if wanted is not None:
                    _backfill(context, self.workplace, wanted)  # what is refused is refused before Spark starts
                if self.claim(context, slot):
                    if wanted is not None:
                        _queue_partitions(context, self.workplace, wanted)
                    yield from self.process(context, slot)
                if slot.run is not None:
                    yield self.hand_over(context, slot)
                    yield from self._outputs(context, slot)
                elif wanted is not None:  # other runs end with success: the owner has their files, too
                    said = f"{self.region.name} has another owner: these partitions were not read, see the warning"
                    raise dg.Failure(said)
        finally:
            if context.job_name != dagster_name(self.region.name):
                context.instance.add_run_tags(context.run_id, tag_after_op(context.instance, context.run_id))

    def hand_over(self, context: dg.OpExecutionContext, slot: RunSlot) -> dg.AssetObservation:
        """Record the end of the run, free the lease, and judge the asset checks; return the totals."""
        with ending_gracefully(slot.interrupt):
            slot.finish()
        for evaluation in evaluations(self.workplace, self.region):
            context.log_event(evaluation)  # type: ignore[arg-type]  # accepted, though not annotated
        numbers: dict[str, Any] = {}
        if slot.reports:
            numbers = group_metadata(slot.reports[-1])  # without them, this event would be a gap in every plot
            numbers |= standing_metadata(present_of(self.workplace, self.region.name))
            ids = f"{slot.reports[0].first_id}..{slot.reports[-1].last_id}"
            context.instance.add_run_tags(context.run_id, {IDS_TAG: ids})
        table = dg.MetadataValue.md(groups_table(slot.reports))
        return renamed(dg.AssetObservation(checkpoint_key(self.region), metadata={GROUPS: table, **numbers}), self.keys)

    def _outputs(self, context: dg.OpExecutionContext, slot: RunSlot) -> Iterator[dg.MaterializeResult[None]]:
        """Yield the outputs in a run with other assets, which follow a region's only if it made something new.

        An output is one more materialisation: the last group's again. The region's own job has nothing that follows.
        A run of partitions gives all of them: those that it did not make itself, a worker of it made that was killed.
        A table comes after those that it is made of: Dagster refuses another order.
        """
        if context.job_name == dagster_name(self.region.name):
            return
        for asset in table_assets(self.region):
            key = self.keys.get(asset.key, asset.key)
            made = slot.made.get(key)
            if made is None and _asked_partitions(context, self.partitions) is not None:
                made = dg.AssetMaterialization(key)
            if made is not None and asset.output in context.selected_output_names:
                tags = {name: value for name, value in (made.tags or {}).items() if name == DATA_VERSION_TAG}
                yield dg.MaterializeResult(asset_key=made.asset_key, metadata=made.metadata, tags=tags)

    def claim(self, context: dg.OpExecutionContext, slot: RunSlot) -> bool:
        """Claim the region; return False if it cannot be claimed and the run is to end without an error."""
        _enter_process(slot)
        tag_begun(context, {**run_tags(self.region), **tag_process(context.run_id)})
        try:
            self.workplace.engine.connect_soon()
            opened, region = self._opened(context.op_config)
            remember(self.workplace, opened, region)
            remember_instance(self.workplace.settings, context.instance)
            remember_keys(self.workplace, region.name, self.keys)
            history = self.workplace.history(region.name)
            remember_partitions(self.workplace, region.name, self.partitions, history, context.instance)
            if history.halt is not None and not is_lifted(history, self._code(opened)):
                raise halted_error(region.name, history)
            wanted = _asked_partitions(context, self.partitions)
            if context.op_config["scan"] and _has_source(region) and wanted is None:
                _scan(context, self.workplace, region)
            _back_off(context, self.workplace, region.name, history, self._code(opened))
            pending = counted(self.workplace.registry.pending_count(region.name), trigger_noun(region))
            context.log.info(f"pending: {pending}; Spark starts")
            run = slot.open(self._run(context, slot, opened, region))
            slot.lingering = self._lingering(context, slot, opened, region)
            run.hosted.takes_starts = slot.lingering is not None
            with ending_gracefully(slot.interrupt):
                _take(context, slot, run, patience_seconds=0.0 if wanted is None else PATIENCE_SECONDS)
            context.instance.add_run_tags(context.run_id, counted_tag(context.run_id))
            end_predecessor(self.workplace, run)
            if slot.lingering is not None:
                slot.lingering.requests.announce(context.run_id, run.owner.epoch)
        except BaseException as error:
            end_with(context, self.region.name, slot, self._counted(context, slot, error))
            return False
        return True

    def _counted(self, context: dg.OpExecutionContext, slot: RunSlot, error: BaseException) -> BaseException:
        """Count a failure before the claim as an attempt; return the error with which the run is to end."""
        if slot.run is not None and slot.run.owner.epoch > 0:  # the checkpoint table has its claim
            context.instance.add_run_tags(context.run_id, counted_tag(context.run_id))
            return error
        if not isinstance(error, Exception):
            return error
        slot.finish(error)
        allowed, region = self.region.parameters.max_consecutive_reset_attempts, self.region.name
        code = code_digest(origin_of(self.reference), self.workplace.settings.project_root)
        counted = count_failure(self.workplace, region, error, allowed=allowed, code=code, run_id=context.run_id)
        context.instance.add_run_tags(context.run_id, counted_tag(context.run_id))
        if counted is not error:
            counted.__cause__ = counted.__cause__ or error
        return counted

    def process(self, context: dg.OpExecutionContext, slot: RunSlot) -> Iterator[AssetEvent]:
        """Process groups and yield their events until there is no more work and no wait; hand over on failure."""
        run = slot.run
        if run is None:
            return
        done, pace = -1, EventPace()
        slot.observe = partial(_observe, context, self.region, self.keys)
        log = context.log_event
        with Pulse(workplace=self.workplace, region=self.region, run=run, log=log, keys=self.keys) as slot.pulse:
            try:
                while done < 0 or ((done < len(slot.reports) or run.hosted.starts) and self._stays(context, slot)):
                    done = len(slot.reports)
                    groups = run.groups()
                    slot.pulse.work_begins()
                    while (report := _next(groups, slot)) is not None:
                        slot.reports.append(report)
                        yield from self._events(context, slot, pace.take(report), run)
                        slot.pulse.judge_first()
                        if slot.lingering is not None and slot.lingering.is_asked():
                            run.max_triggers = 0  # this was its last group
                    yield from self._events(context, slot, pace.rest(), run)
            except GeneratorExit:
                raise
            except BaseException as error:
                yield from self._events(context, slot, pace.rest(), run)
                end_with(context, self.region.name, slot, error)

    def _stays(self, context: dg.OpExecutionContext, slot: RunSlot) -> bool:
        """Wait for more files if the run may linger; return False if it is to end."""
        if slot.lingering is None:
            return False
        if not slot.lingering.hosts_threads():  # with threads there would be a line for each of their slices
            context.log.info(f"nothing is pending: stays for {slot.lingering.seconds:g} s in case more comes")
        with ending_gracefully(slot.interrupt):
            if slot.lingering.has_more():
                return True
        context.log.info(f"ends: {slot.lingering.why}")
        return False

    def _lingering(
        self, context: dg.OpExecutionContext, slot: RunSlot, opened: Opened, region: RegionPlan
    ) -> Lingering | None:
        """Return the wait of a run that a sensor started for a backlog; None for other runs, which do not linger."""
        settings = self.workplace.settings
        seconds = linger_seconds(region, settings)
        is_for_all = region.parameters.runs == Runs.BACKLOG and context.op_config["max_triggers"] is None
        if not (seconds and is_for_all and SENSOR_TAG in context.run.tags and _has_source(region)):
            return None
        runs = RegionRuns(instance=context.instance, workplace=self.workplace, region=region, pool=context.op_def.pool)
        return Lingering(
            region=region.name,
            registry=self.workplace.registry,
            watch=SourceWatch(workplace=self.workplace, region=region),
            seconds=seconds,
            until=time.monotonic() + settings.linger_limit_seconds,
            interrupted=slot.interrupted,
            requests=Requests(self.workplace.registry, region.name),
            code=CodeFiles(opened, settings.project_root),
            is_in_the_way=runs.is_wanted_place,
            has_failed=lambda: slot.run is not None and slot.run.hosted.has_failed,
            hosts_threads=lambda: slot.run is not None and slot.run.hosted.has_threads,
            rest=lambda: slot.run.rest() if slot.run is not None else None,
        )

    def _opened(self, config: Mapping[str, Any]) -> tuple[Opened, RegionPlan]:
        require_short(config, self.region.name)
        inputs = [f"{name}={path}" if name else path for name, path in config["inputs"].items()]
        settings = self.workplace.settings
        opened = open_in_time(settings, self.reference, params=config["parameters"], inputs=inputs)
        keep_schemas(opened.schemas, self.workplace.has_states)
        return opened, opened.region(self.region.name)

    def _code(self, opened: Opened) -> str:
        return code_digest(opened.application.origin, self.workplace.settings.project_root)

    def _run(self, context: dg.OpExecutionContext, slot: RunSlot, opened: Opened, region: RegionPlan) -> RegionRun:
        with ending_gracefully(slot.interrupt):
            run = analysed_run(
                self.workplace,
                opened,
                region,
                interrupted=slot.interrupted,
                run_id=context.run_id,
                report=slot.report,
                max_group=context.op_config["max_group"],
                max_triggers=context.op_config["max_triggers"],
            )
            tried_first_use(self.workplace, run)
        return run

    def _events(
        self, context: dg.OpExecutionContext, slot: RunSlot, report: GroupReport | None, run: RegionRun
    ) -> list[AssetEvent]:
        """Return the events of published groups; an error here must not fail the run, so it returns none."""
        if report is None:
            return []
        tables, is_first = run.blueprint.tables, report is slot.reports[0]
        try:
            store = run.owner.outside.store
            counts = {table.name: count for table in tables if (count := store.open(table).row_count()) is not None}
            schemas = {table.name: table.schema_json for table in tables} if is_first else None
            place = self.workplace.tables
            standing = pulse.of(report) if (pulse := slot.pulse) is not None else None
            made = materializations(
                report,
                self.region,
                tables=place,
                row_counts=counts,
                schemas=schemas,
                lineages=_lineages(context, slot, run, self.provenance),
                tags=self.provenance.tags,
                standing=standing,
            )
            events: list[AssetEvent] = [*observations(report, self.region), *made]
            renamed_events = [renamed(event, self.keys) for event in events]
            slot.made |= {each.asset_key: each for each in renamed_events if isinstance(each, dg.AssetMaterialization)}
            if self.partitions is not None:
                ids = (report.first_id, report.last_id)
                made_parts = self.partitions.told(context.instance, self.region, run.owner.history, ids, self.keys)
                if _asked_partitions(context, self.partitions) is not None:
                    renamed_events = [_without_partition(event) for event in renamed_events]
                return [*renamed_events, *made_parts]
            return renamed_events
        except Exception as error:
            context.log.warning(printable(f"No events for {report.first_id}..{report.last_id}: {error}"))
            return []


def _observe(context: dg.OpExecutionContext, region: RegionPlan, keys: Keys, numbers: Mapping[str, Any]) -> None:
    """Show the progress of the stages and the batches in flight on the checkpoint table's page."""
    seen = dg.AssetObservation(checkpoint_key(region), metadata=flow_metadata(numbers))
    context.log_event(renamed(seen, keys))


def _back_off(
    context: dg.OpExecutionContext, workplace: Workplace, region: str, history: RegionHistory, code: str
) -> None:
    """Wait before another attempt, because Dagster's retries have no delay."""
    attempt = attempts_after(history, history.last_outcome, code)
    if attempt and living_owner(workplace, region) is None:
        seconds = workplace.settings.pause_seconds(attempt)
        if seconds > 0:
            context.log.info(f"back-off: {seconds:g} s before attempt {attempt}")
            time.sleep(seconds)


def _take(context: dg.OpExecutionContext, slot: RunSlot, run: RegionRun, *, patience_seconds: float) -> None:
    """Claim the region. A run of partitions waits for the owner: of a backfill, Dagster counts its own runs only.

    Args:
        patience_seconds: how long it waits; an owner that lingers is asked to go.
    """

    def claim() -> None:
        if slot.interrupted.is_set():
            raise Interrupted("the run was interrupted while it waited for the region")
        run.claim()

    until, is_told = time.monotonic() + patience_seconds, False
    while True:
        try:
            if patience_seconds:
                claim_asking(run.owner, claim)
            else:
                claim()
            return
        except Owned as owned:
            if time.monotonic() >= until:
                raise
            if not is_told:
                context.log.info(printable(f"waits for the region: {owned}"))
                is_told = True
        time.sleep(_LOOK_SECONDS)


def _asked_partitions(context: dg.OpExecutionContext, partitions: Partitions | None) -> Partitions | None:
    """Return the partitions of a region if the run is of some of them."""
    is_asked = partitions is not None and (context.has_partition_key or context.has_partition_key_range)
    return partitions if is_asked else None


def _without_partition(event: AssetEvent) -> AssetEvent:
    """Return the event of a group in a run of partitions: a backfill fails by an event that makes the whole table."""
    if isinstance(event, dg.AssetObservation):
        return event
    return dg.AssetObservation(event.asset_key, metadata=event.metadata)


def _backfill(context: dg.OpExecutionContext, workplace: Workplace, partitions: Partitions) -> Order | None:
    """Return the order to read the files of the run's partitions again, as `drainmark backfill --again` does.

    What is refused is no attempt of the region: its state and code are not at fault.

    Returns:
        None for the retry of a run that did it and failed, or for a run whose worker died after it: what is left is
        queued.

    Raises:
        dg.Failure: the verb refuses them, or no committed file is of these partitions.
    """
    if _retries_what_is_queued(context):
        return None
    try:
        keys = context.partition_keys
        files = partitions.files(workplace.history(partitions.region), keys)
        if not files:
            said = f"no committed file is of {counted(len(keys), 'partition')}, of {keys[0]!r} first"
            raise UsageError(
                said, remedy=f"choose others: drainmark history {partitions.region} lists what is in force"
            )
        return orders.backfill(workplace, partitions.region, Wanted(files=files, again=True))
    except DrainmarkError as error:
        context.instance.add_run_tags(context.run_id, {MAX_RETRIES_TAG: "0", **counted_tag(context.run_id)})
        note(context, str(error))
        raise failure_of(error, partitions.region) from error


def _queue_partitions(context: dg.OpExecutionContext, workplace: Workplace, partitions: Partitions) -> None:
    """Queue the files of the run's partitions: this run owns the region, so no other one reads them."""
    order = _backfill(context, workplace, partitions)
    if order is None:
        return
    if order.notice:
        context.log.info(printable(order.notice))
    try:
        done = order.act()
    except DrainmarkError as error:
        raise failure_of(error, partitions.region) from error
    context.instance.add_run_tags(context.run_id, {QUEUED_TAG: context.run_id})
    context.log.info(printable("\n".join(done.lines)))
    for remark in done.remarks:
        context.log.warning(printable(remark))


def _retries_what_is_queued(context: dg.OpExecutionContext) -> bool:
    """Say whether a run has queued the files, and it and all its retries up to this one have failed.

    Or a worker of this run has: Dagster's monitoring lets another one resume the run.
    """
    if context.run.tags.get(QUEUED_TAG) == context.run.run_id:
        return True
    before = context.run.parent_run_id
    while before is not None:
        run = context.instance.get_run_by_id(before)
        if run is None or not run.is_failure_or_canceled:
            return False
        if run.tags.get(QUEUED_TAG) == run.run_id:
            return True
        before = run.parent_run_id
    return False


def _lineages(
    context: dg.OpExecutionContext, slot: RunSlot, run: RegionRun, provenance: Provenance
) -> Mapping[str, dg.TableColumnLineage]:
    """Return the lineage of the columns, which Spark is asked for once a run; Dagster shows that of the last event."""
    if slot.lineages is None:
        try:
            slot.lineages = provenance.lineage(run.blueprint)
        except Exception as error:  # Spark may be gone; the numbers of the group are told without it
            context.log.warning(printable(f"No column lineage: {error}"))
            slot.lineages = {}
    return slot.lineages


def _next(groups: Iterator[GroupReport], slot: RunSlot) -> GroupReport | None:
    """Return the next group. Meanwhile, signals end the run gracefully; while Dagster works, they raise."""
    with ending_gracefully(slot.interrupt):
        return next(groups, None)


def _scan(context: dg.OpExecutionContext, workplace: Workplace, region: RegionPlan) -> None:
    """Scan; halt the region if its source requires that for input that is lost or changed."""
    try:
        scanned = scan_region(workplace, region)
    except (InputChanged, InputMissing) as error:
        raise claim_and_halt(workplace, region, error, context.run_id) from error
    context.log.info(f"scan: {scanned.new_count} new files of {scanned.seen}")


def _has_source(region: RegionPlan) -> bool:
    return any(isinstance(start, Source) for start in region.starts)


def _enter_process(slot: RunSlot) -> None:
    """If this process was made for this run, give it UTC, make the run end with its parent, and arm fail points."""
    if multiprocessing.parent_process() is not None or sys.argv[1:3] in _WORKERS:
        have_utc()
        watch_parent(slot.interrupt)
        arm_from_environment()
