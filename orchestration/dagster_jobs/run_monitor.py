"""The runs of a region in Dagster: their tags, the active runs, and the reaper of dead runs.

Dagster retries a failed run up to `max_consecutive_reset_attempts` times, but the count of attempts is in the region's
checkpoint table. With the default launcher, a run stays STARTED for ever if both its process and its code server die.
The reaper uses the heartbeat and the process of the run instead.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

import dagster as dg

from drainmark.jobs.errors.environment import RunDied
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.dagster_assets.assets import table_assets
from drainmark.orchestration.dagster_assets.metadata import MAX_RETRIES_TAG, NOTE_TAG, PROCESS_TAG, REGION_TAG
from drainmark.orchestration.dagster_assets.translator import remembered_keys
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.runs.failures_before_claim import count_failure
from drainmark.orchestration.workplace.run_processes import RunProcess
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry.lease import Owner, describe, silent_seconds

RETRY_STRATEGY_TAG = "dagster/retry_strategy"
WILL_RETRY_TAG = "dagster/will_retry"
SENSOR_TAG = "dagster/sensor_name"
"""Dagster's own tag on the runs that a sensor requested, and on their retries."""

COUNTED_TAG = ".dagster/drainmark_counted"
"""Its value is the run id once the checkpoint table has the run; without it, a dead run must be counted."""

NOT_COUNTED = "no"
_CAUSE_CHARACTERS = 500

SILENT_SECONDS = 60.0
"""Seconds after its start within which a run must reach its first op; else it counts as dead."""

POOL_SECONDS = 360.0
"""Seconds within which a run that waits for a place in its pool says so again: Dagster lets it do so every 300."""

LOST_SECONDS = 600.0
"""Seconds without a lease after which a run on another host is lost: Spark's start and back-off take less."""

RETRY_SECONDS = 60.0
"""Seconds to wait for a retry. Dagster's daemon begins a retry a few seconds after the failure, or never: it looks at
each failure once, and may do so before the run's status and tags show it."""

_silent: dict[str, tuple[tuple[str, dt.datetime], float]] = {}
"""By region, the run that is silent, its last heartbeat, and when this process first saw it, by the monotonic clock."""

_NEWEST = 25
_WAITING = 100

_ACTIVE = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
_RUNNING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
_REAPED = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def run_tags(region: RegionPlan) -> dict[str, str]:
    """Return the tags of every run of a region. A run started from the asset page gets them from its first op."""
    return tags_of(region.name, region.parameters.max_consecutive_reset_attempts)


def tags_of(region: str, allowed: int) -> dict[str, str]:
    return {
        REGION_TAG: region,
        MAX_RETRIES_TAG: str(allowed),
        RETRY_STRATEGY_TAG: "ALL_STEPS",
        COUNTED_TAG: NOT_COUNTED,
    }


def counted_tag(run_id: str) -> dict[str, str]:
    """Return the tag of a run that the checkpoint table knows; on a retry, a copy of the tag has no effect."""
    return {COUNTED_TAG: run_id}


def tag_process(run_id: str, pid: int | None = None) -> dict[str, str]:
    """Return the tag of the process that executes a run; the run id in it shows that no retry copied it.

    Args:
        pid: of a process of this host, by default this one.
    """
    return {PROCESS_TAG: str(RunProcess.here(run_id, pid))}


def tag_after_op(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """Return the tag of the process that goes on with a run, after an op in this process has ended.

    Most executors give an op a process of its own: its end says nothing about the run, in which other ops may follow
    for hours. If the run's worker is not its parent, as in a container, no process of this host stands for the run.
    """
    if not instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED):
        return {}  # this process is the worker
    parent = multiprocessing.parent_process()
    return tag_process(run_id, parent.pid) if parent is not None else {PROCESS_TAG: ""}


def _is_uncounted(run: dg.DagsterRun) -> bool:
    is_counted = run.tags.get(COUNTED_TAG, run.run_id) == run.run_id
    return run.status is dg.DagsterRunStatus.FAILURE and not is_counted


def active_runs(instance: dg.DagsterInstance, job: str) -> list[dg.DagsterRun]:
    """Return the runs of a job that are at work, wait in the queue, or failed and wait for their retry."""
    running = instance.get_runs(dg.RunsFilter(job_name=job, statuses=list(_ACTIVE)))
    return [*(record.dagster_run for record in waiting_runs(instance, job)), *running]


def give_up_retries(instance: dg.DagsterInstance, records: Iterable[dg.RunRecord]) -> list[str]:
    """Mark the runs whose retry never comes as not retried; return a reason for each run."""
    reasons = []
    for record in records:
        age = time.time() - (record.end_time or record.update_timestamp.timestamp())
        if age > RETRY_SECONDS:
            run = record.dagster_run.run_id
            instance.add_run_tags(run, {WILL_RETRY_TAG: "false"})
            reasons.append(f"run {run}: Dagster has not begun its retry for {age:.0f} s, and never will")
    return reasons


def reap_dead(instance: dg.DagsterInstance, job: str) -> list[str]:
    """Report a job's runs whose process on this host is dead as failed or cancelled; return a reason for each."""
    if _resumes(instance):
        return []
    records = instance.get_run_records(dg.RunsFilter(job_name=job, statuses=list(_REAPED)))
    dead = [(record.dagster_run, _death_here(record.dagster_run)) for record in records]
    return [_reported(instance, run, reason) for run, reason in dead if reason is not None]


def _resumes(instance: dg.DagsterInstance) -> bool:
    """Say whether Dagster's monitoring resumes runs.

    Then it judges each worker itself, resumes or fails its run, and may be starting another worker just now.
    """
    return bool(instance.run_monitoring_enabled and instance.run_monitoring_max_resume_run_attempts)


def waiting_runs(instance: dg.DagsterInstance, job: str | None = None) -> list[dg.RunRecord]:
    """Return the runs that failed and wait for their retry, newest first; of all jobs by default."""
    failed = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY_TAG: "true"})
    records = instance.get_run_records(failed, limit=_WAITING)
    return [record for record in records if record.dagster_run.is_complete_and_waiting_to_retry]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRuns:
    """The runs of one region in a Dagster instance.

    Attributes:
        pool: that a run of the region takes a place of; None for none.
    """

    instance: dg.DagsterInstance
    workplace: Workplace
    region: RegionPlan
    pool: str | None = None

    def active(self) -> list[dg.DagsterRun]:
        """Return the runs that failed and wait for their retry, then those queued or at work; oldest first."""
        running = [record.dagster_run for record in self._records(_ACTIVE)]
        return [*(record.dagster_run for record in reversed(self._waiting())), *reversed(running)]

    def reap(self) -> list[str]:
        """Report runs whose process is dead as failed (or cancelled, if that was asked for); return a reason for each.

        Runs that wait for a retry that never comes are given up. Otherwise the region would never run again. A run that
        Dagster's monitoring may give another worker is left to it.
        """
        reasons = give_up_retries(self.instance, self._waiting())
        for record in () if _resumes(self.instance) else self._records(_REAPED):
            reason = self._death_of(record)
            if reason is not None:
                reasons.append(_reported(self.instance, record.dagster_run, reason))
        return reasons

    def count_dead(self, code: Callable[[], str]) -> None:
        """Count the newest failed runs that the checkpoint table does not have: they died before their claim.

        It does not count runs of old versions without the tag. It counts none while another run is active, because
        that run may succeed.
        """
        if not self._dead(1) or self.active():
            return
        for run in reversed(self._dead(_NEWEST)):
            said = f"run {run.run_id} ended before its claim: {self._cause_of(run)}"
            died = RunDied(said, remedy="see the run's page in Dagster")
            allowed = self.region.parameters.max_consecutive_reset_attempts
            count_failure(self.workplace, self.region.name, died, allowed=allowed, code=code(), run_id=run.run_id)
            self.instance.add_run_tags(run.run_id, counted_tag(run.run_id))

    def _dead(self, limit: int) -> list[dg.DagsterRun]:
        """Return the newest runs, newest first, up to the first one (exclusive) that did not fail or is counted."""
        runs = self.instance.get_runs(dg.RunsFilter(tags={REGION_TAG: self.region.name}), limit=limit)
        return list(takewhile(_is_uncounted, runs))

    def _cause_of(self, run: dg.DagsterRun) -> str:
        events = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        message = next((event.message for event in reversed(list(events)) if event.message), "")
        return message[:_CAUSE_CHARACTERS] or "it left no word"

    def last_note(self) -> str:
        """Return the note that the newest run left at its end, "" if there is none."""
        newest = self.instance.get_runs(dg.RunsFilter(tags={REGION_TAG: self.region.name}), limit=1)
        return newest[0].tags.get(NOTE_TAG, "") if newest else ""

    def is_wanted_place(self) -> bool:
        """Say whether a queued run could start if the run of this region ended."""
        queued = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]), limit=100)
        if any(self._belongs(run) for run in queued):
            return True
        config = self.instance.get_concurrency_config().run_queue_config
        limit = config.max_concurrent_runs if config is not None else -1
        if queued and 0 <= limit <= self.instance.get_runs_count(dg.RunsFilter(statuses=list(_RUNNING))):
            return True
        return self.pool is not None and self._is_pool_wanted(self.pool, queued)

    def _is_pool_wanted(self, pool: str, queued: Iterable[dg.DagsterRun]) -> bool:
        """Say whether a pool is full and a run waits for a place: in the queue, or at work without the queue."""
        known = self.instance.event_log_storage.get_concurrency_info(pool)
        if not (known.pending_run_ids or any(pool in _pools_of(run) for run in queued)):
            return False
        taken = known.active_slot_count
        if not taken:  # the pool counts runs, see `concurrency.pools.granularity`
            running = self.instance.get_runs(dg.RunsFilter(statuses=list(_RUNNING)))
            taken = sum(pool in _pools_of(run) for run in running)
        return 0 < known.slot_count <= taken

    def _death_of(self, record: dg.RunRecord) -> str | None:
        run = record.dagster_run
        owner = describe(self.workplace.registry, self.region.name, lease_seconds=self.workplace.settings.lease_seconds)
        process = process_of(run.tags, run.run_id)
        if owner is not None and owner.run_id == run.run_id:
            is_there = process is not None and process.is_alive is True
            return None if owner.is_alive or (is_there and self._may_beat(owner)) else _last_seen(owner)
        age = time.time() - (record.start_time or record.create_timestamp.timestamp())
        if process is None:
            is_ours = run.job_name == dagster_name(self.region.name)
            if not is_ours or age <= SILENT_SECONDS or _waits_for_pool(self.instance, run.run_id):
                return None
            return f"no sign of life for {age:.0f} s after its start"
        if process.is_alive is not None:
            return _death_here(run)
        silent = silent_seconds(self.workplace.registry, self.region.name, run.run_id)
        age = age if silent is None else silent  # it may have worked for hours and be ending now
        return f"pid {process.pid} on {process.host} holds no lease for {age:.0f} s" if age > LOST_SECONDS else None

    def _may_beat(self, owner: Owner) -> bool:
        """Say whether a process of this host that is there may beat again: the registry, or the whole machine, may have
        been away. A stopped one is silent for a lease after the first look, too."""
        last = (owner.run_id, owner.heartbeat_at)
        seen, looked_at = _silent.get(owner.region, (None, 0.0))
        if seen != last:
            _silent[owner.region] = last, (looked_at := time.monotonic())
        return time.monotonic() - looked_at < self.workplace.settings.lease_seconds

    def _waiting(self) -> list[dg.RunRecord]:
        return [record for record in waiting_runs(self.instance) if self._belongs(record.dagster_run)]

    def _records(self, statuses: tuple[dg.DagsterRunStatus, ...]) -> list[dg.RunRecord]:
        records = self.instance.get_run_records(dg.RunsFilter(statuses=list(statuses)))
        return [record for record in records if self._belongs(record.dagster_run)]

    def _belongs(self, run: dg.DagsterRun) -> bool:
        """Say whether a run belongs to the region, even if it comes from the asset page and has no tags yet."""
        if run.job_name == dagster_name(self.region.name) or run.tags.get(REGION_TAG) == self.region.name:
            return True
        selected = run.asset_selection or frozenset()
        keys = remembered_keys(self.workplace, self.region.name) if selected else {}
        return any(keys.get(asset.key, asset.key) in selected for asset in table_assets(self.region))


def _pools_of(run: dg.DagsterRun) -> Collection[str]:
    known = run.run_op_concurrency
    return known.all_pools or () if known is not None else ()


def _waits_for_pool(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Say whether the op of a run waits for a place in its pool, or may have got one just now."""
    for entry in reversed(instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        if entry.dagster_event is not None and "pool" in entry.dagster_event.engine_event_data.metadata:
            return time.time() - entry.timestamp < POOL_SECONDS
    return False


def _death_here(run: dg.DagsterRun) -> str | None:
    """Return a reason if a run's process is dead; None if it lives, is on another host, or is unknown."""
    process = process_of(run.tags, run.run_id)
    return f"pid {process.pid} is dead" if process is not None and process.is_alive is False else None


def _reported(instance: dg.DagsterInstance, run: dg.DagsterRun, reason: str) -> str:
    """Report a dead run as failed, or cancelled if that was asked for; return the reason with its id."""
    message = f"Drainmark's reaper: {reason}"
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message)
    else:
        instance.report_run_failed(run, message)
    return f"run {run.run_id}: {reason}"


def process_of(tags: Mapping[str, str], run_id: str) -> RunProcess | None:
    """Return the process that executes a run; None if the run has no tag of its own."""
    found = RunProcess.of(tags.get(PROCESS_TAG))
    return found if found is not None and found.run_id == run_id else None


def _last_seen(owner: Owner) -> str:
    return f"pid {owner.pid} on {owner.host} is dead or silent, last heartbeat {owner.heartbeat_age_seconds:.0f} s ago"
