"""The start of a region's runs: by a sensor that scans its sources, or by a schedule whose runs scan.

A tick decides from the checkpoint table and the registry; `run_key` is only a second fence. Skip reasons name the
cause and the command that helps.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

import dagster as dg

from drainmark.jobs.errors import DrainmarkError, InputChanged, InputMissing, Owned
from drainmark.jobs.graph.annotations import Runs
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.printable import printable
from drainmark.jobs.protocol.failure_policy import is_lifted
from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.publish.visible_tables import may_bring_up
from drainmark.jobs.runtime.messages import halt_text
from drainmark.orchestration.dagster_assets.instance import missing_lines, remember_instance
from drainmark.orchestration.dagster_assets.metadata import NOTE_TAG, TRIGGER_TAG
from drainmark.orchestration.dagster_jobs.run_monitor import (
    RegionRuns,
    active_runs,
    give_up_retries,
    reap_dead,
    run_tags,
    waiting_runs,
)
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.discovery.source_watch import LOOK_SECONDS, SourceWatch
from drainmark.orchestration.inspection.region_view import RegionView, moment_of
from drainmark.orchestration.runs.failures_before_claim import claim_and_halt
from drainmark.orchestration.runs.halt_hook import make_up
from drainmark.orchestration.runs.idle_wait import linger_seconds
from drainmark.orchestration.workplace.application_identity import code_digest
from drainmark.orchestration.workplace.region_sources import has_folder, has_threads, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace, looks

REQUESTS_A_TICK = 20
FRUITLESS_BACK_OFF_SECONDS = 300.0
_NEWEST = 10

_DUE_SECONDS = 5
"""Seconds between two looks of Dagster's sensor daemon for due ticks."""

LONG_SECONDS = 30.0
"""Ticks of the sensor keep periods of at least this many seconds; a run that lingers keeps shorter periods."""

WATCH_SECONDS = 18.5
"""Seconds that a tick watches a folder. The next tick starts after twenty seconds; the daemon needs the rest."""

_ACTIVE_SECONDS = 2.0
"""Seconds between two queries of Dagster for active runs: a query slows down a run that starts."""

_met: set[str] = set()

_WATCHERS = threading.BoundedSemaphore(3)
"""Limit of ticks that watch at the same time: the code server has at least six threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The memory of a sensor between ticks; if it is lost, only a back-off is lost.

    Attributes:
        ticks: number of ticks that requested runs, a part of the run keys.
        epoch: of the region at the last request.
        fruitless: requests in a row after the first under that epoch: runs ended before they claimed.
        requested_at: time of the last request, seconds since 1970.
    """

    ticks: int = 0
    epoch: int = -1
    fruitless: int = 0
    requested_at: float = 0.0

    @classmethod
    def from_text(cls, text: str | None) -> Cursor:
        try:
            return cls(**json.loads(text or "{}"))
        except (ValueError, TypeError):
            return cls()

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def with_request(self, epoch: int, now: float) -> Cursor:
        fruitless = self.fruitless + 1 if epoch == self.epoch else 0
        return Cursor(ticks=self.ticks + 1, epoch=epoch, fruitless=fruitless, requested_at=round(now, 3))

    def wait_seconds(self, epoch: int, now: float) -> float:
        """Return the seconds to wait before another request, so that runs that never claim do not start every tick."""
        if epoch != self.epoch:
            return 0.0
        return _seconds_left(self.fruitless, self.requested_at, now)


def _seconds_left(fruitless: int, since: float, now: float) -> float:
    """Return the seconds to wait after a number of runs in a row that did nothing, the last one at `since`."""
    delay = min(FRUITLESS_BACK_OFF_SECONDS, 2.0 ** min(fruitless + 2, 16))
    # A clock that was set back must not stall the region for the whole jump.
    return max(0.0, delay - (now - since)) if now >= since else 0.0


class BoxedScan:
    """A scan with a time box: a scan that takes longer goes on in its thread, and later ticks wait for its end."""

    def __init__(self) -> None:
        self._running: Future[Any] | None = None

    def run(self, workplace: Workplace, region: RegionPlan) -> bool:
        """Scan, or wait for the scan that is under way; return False if the time box ends before the scan.

        Raises:
            DrainmarkError: as `scan_region`.
        """
        if not any(isinstance(start, Source) for start in region.starts):
            return True
        if self._running is None:
            pool = ThreadPoolExecutor(1, thread_name_prefix=f"scan {region.name}")
            self._running = pool.submit(scan_region, workplace, region, tick=Tick.DUE)
            pool.shutdown(wait=False)
        try:
            self._running.result(timeout=workplace.settings.sensor_time_box_seconds)
        except FutureTimeout:
            if not self._running.done():
                return False
            raise
        finally:
            if self._running.done():
                self._running = None
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTicks:
    """The ticks of one region.

    Attributes:
        node: name of the graph in the job; the run config is below this name.
        origin: path of the application's file.
    """

    workplace: Workplace
    region: RegionPlan
    node: str
    origin: str = ""
    _scans: BoxedScan = field(default_factory=BoxedScan)

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Reap dead runs, scan, and request the runs that are needed; a preview on Dagster's page only says it."""
        cursor = Cursor.from_text(context.cursor)
        try:
            if self.workplace.is_service and context.log_key is None:  # every tick of the daemon has a key for its logs
                return self._preview(context.instance, cursor)
            return self._requests(context, cursor)
        except DrainmarkError as error:
            if isinstance(error, InputChanged | InputMissing):
                self._halt(error)
            return _skipped(str(error), cursor)

    def _halt(self, error: DrainmarkError) -> None:
        """Halt the region, as the scan of a run does, so that the history has the halt and `on_halt` runs."""
        if self.workplace.history(self.region.name).halt is None:
            with suppress(Owned):  # its owner scans, too
                claim_and_halt(self.workplace, self.region, error)

    def _preview(self, instance: dg.DagsterInstance, cursor: Cursor) -> dg.SensorResult:
        """Say what a tick would do with what is known now: nothing is scanned, reaped, counted, halted or started."""
        runs = RegionRuns(instance=instance, workplace=self.workplace, region=self.region)
        active, moment = self._now(runs)
        history, known = moment.history, looks(self.workplace)
        pending = known.pending_count(self.region.name) if known is not None else 0
        if history.halt is not None and not self._is_lifted(history):
            return _skipped(f"HALTED: {halt_text(self.region.name, history)}", cursor)
        if active:
            return _skipped(_busy(active, history), cursor)
        if pending or needs_recovery(history):
            key = f"{self.region.name}:{history.epoch}:{cursor.ticks}"
            return dg.SensorResult(run_requests=[self.request(key, {"scan": False})], cursor=cursor.to_text())
        return _skipped(f"{self._idle(history)}; a preview does not look for new input", cursor)

    def _requests(self, context: dg.SensorEvaluationContext, cursor: Cursor) -> dg.SensorResult:
        runs = RegionRuns(instance=context.instance, workplace=self.workplace, region=self.region)
        _meet(context, self.workplace)
        for reason in runs.reap():
            context.log.warning(f"given up: {reason}")
        runs.count_dead(self.code)
        if not self._scans.run(self.workplace, self.region):
            box = self.workplace.settings.sensor_time_box_seconds
            return _skipped(f"the scan goes on: it took longer than {box:g} s, the next tick looks again", cursor)
        active, moment = self._now(runs)
        history = moment.history
        if (why_not := self.why_not(history)) is not None:
            return _skipped(why_not, cursor)
        if self.region.parameters.runs == Runs.PER_TRIGGER.value:
            wanted = self._one_run_a_trigger(moment, active, cursor, runs)
        else:
            wanted = self._one_run(moment, active, cursor, runs)
        if isinstance(wanted, str):
            return _skipped(wanted, cursor)
        now = time.time()
        if (seconds := cursor.wait_seconds(history.epoch, now)) > 0 and not active:
            return _skipped(self._fruitless(seconds, runs.last_note()), cursor)
        self._start_spark(context.instance)
        return dg.SensorResult(run_requests=wanted, cursor=cursor.with_request(history.epoch, now).to_text())

    def why_not(self, history: RegionHistory) -> str | None:
        """Return a reason if the region must not run now, even if input is pending; None if it may run."""
        name = self.region.name
        if history.halt is not None and not self._is_lifted(history):
            make_up(self.workplace, name, history)
            return f"HALTED: {halt_text(name, history)}"
        if history.states and self.workplace.registry.is_empty(name):
            return f"the registry knows nothing of {name}: drainmark doctor --repair"
        return None

    def _is_lifted(self, history: RegionHistory) -> bool:
        """Say whether failures of code halted the region, and that code has changed since."""
        return "code" in (history.halt.detail if history.halt is not None else ()) and is_lifted(history, self.code())

    def code(self) -> str:
        return code_digest(self.origin, self.workplace.settings.project_root)

    def _now(self, runs: RegionRuns) -> tuple[list[dg.DagsterRun], RegionView]:
        """Return the active runs, and then the region: a run that ends in between has handed it over by then.

        In the other order it would seem that its owner died, and an empty run would be started to recover the region.
        """
        active = runs.active()
        return active, moment_of(self.workplace, self.workplace.registry, self.region.name)

    def _one_run(
        self, moment: RegionView, active: list[dg.DagsterRun], cursor: Cursor, runs: RegionRuns
    ) -> list[dg.RunRequest] | str:
        history = moment.history
        if active:
            return _busy(active, history)
        pending = self.workplace.registry.pending_count(self.region.name)
        is_due = pending or self._hosts_starts() or needs_recovery(history) or self._is_lifted(history)
        if not is_due:
            if not self._watch(runs):
                return self._idle(history)
            _, moment = self._now(runs)
        if (owner := self._owner(moment)) is not None:
            return owner
        key = f"{self.region.name}:{history.epoch}:{cursor.ticks}"
        return [self.request(key, {"scan": False})]

    def _one_run_a_trigger(
        self, moment: RegionView, active: list[dg.DagsterRun], cursor: Cursor, runs: RegionRuns
    ) -> list[dg.RunRequest] | str:
        if active or not needs_recovery(moment.history):
            self._watch(runs)
            active, moment = self._now(runs)
        history = moment.history
        taken = len(active)  # the active runs take the first pending triggers
        waiting = self.workplace.registry.triggers.pending(self.region.name, taken + REQUESTS_A_TICK)[taken:]
        if not waiting and not active and needs_recovery(history):
            return self._one_run(moment, active, cursor, runs)
        if not waiting:
            return _busy(active, history) if active else self._idle(history)
        if not active and (owner := self._owner(moment)) is not None:
            return owner
        return [
            self.request(
                f"{self.region.name}:{trigger.order_index}:{history.epoch}:{cursor.ticks}",
                {"scan": False, "max_triggers": 1},
                {TRIGGER_TAG: printable(trigger.uri)[:500]},
            )
            for trigger in waiting
        ]

    def _hosts_starts(self) -> bool:
        """Say whether a run is needed without pending input, because the threads of the region's starts run in it."""
        return has_threads(self.region) and linger_seconds(self.region, self.workplace.settings) > 0

    def _watch(self, runs: RegionRuns) -> bool:
        """Look at the folder repeatedly until the tick must end, or more triggers are pending than runs are active.

        Dagster starts ticks at most every five seconds, so a tick with a single look finds a file late. The code server
        answers only a few calls at a time. So only a few ticks may watch at the same time; the others look once. All do
        if the daemon has one thread for all sensors, as it has by default: a tick that watches holds up the others.
        """
        is_often = self.workplace.settings.sensor_interval_seconds <= _DUE_SECONDS and self._is_local()
        has_threads = bool((runs.instance.get_settings("sensors") or {}).get("use_threads"))
        if not (self.workplace.is_service and is_often and has_threads and _WATCHERS.acquire(blocking=False)):
            return False
        try:
            watch = SourceWatch(workplace=self.workplace, region=self.region)
            until, active_at, seen = time.monotonic() + WATCH_SECONDS, float("-inf"), 0
            while (now := time.monotonic()) < until:
                # Do not use the count of `look`: it includes changed files that `on_change` ignores.
                pending = self.workplace.registry.pending_count(self.region.name)
                if pending and (pending != seen or now - active_at > _ACTIVE_SECONDS):
                    if pending > len(runs.active()):
                        return True
                    active_at = now
                seen = pending
                time.sleep(LOOK_SECONDS)
                watch.look()
            return False
        finally:
            _WATCHERS.release()

    def _is_local(self) -> bool:
        return has_folder(self.region) and not is_object(source_folder(self.workplace, source_of(self.region)))

    def request(
        self, key: str | None, config: Mapping[str, Any], tags: Mapping[str, str] | None = None
    ) -> dg.RunRequest:
        run_config = {"ops": {self.node: {"config": dict(config)}}}
        return dg.RunRequest(run_key=key, run_config=run_config, tags={**run_tags(self.region), **(tags or {})})

    def _start_spark(self, instance: dg.DagsterInstance) -> None:
        """Start the resident Spark while Dagster starts the run. Ignore errors: the run reports them better.

        A launcher that starts runs in other containers, as that of Kubernetes, starts none that could use it.
        """
        if self.workplace.is_service and isinstance(instance.run_launcher, dg.DefaultRunLauncher):
            with suppress(OSError, DrainmarkError):
                self.workplace.engine.prepare()

    def _owner(self, moment: RegionView) -> str | None:
        """Return a skip reason that names the live owner of the region; None if there is none."""
        if (owner := moment.living) is None:
            return None
        since = owner.acquired_at.isoformat(timespec="seconds")
        return f"owned by pid {owner.pid} on {owner.host} since {since}: drainmark status {self.region.name}"

    def _idle(self, history: RegionHistory) -> str:
        where = f"nothing is pending: {self.region.name} is at sequence id {history.committed_id}"
        if has_threads(self.region):  # a declaration with linger=0 is refused, so the setting is 0
            return f"{where}; the thread of its start has no run: linger_seconds is 0"
        return where

    def _fruitless(self, seconds: float, why: str) -> str:
        """Return the skip reason if runs end before their claim and cost no attempt: no halt reports this case."""
        said = f": {why}" if why else ""
        return (
            f"the last run ended before it claimed {self.region.name}{said}; the next one starts in {seconds:.0f} s. "
            f"See why: drainmark run {self.region.name} --attempts 1"
        )


def needs_recovery(history: RegionHistory) -> bool:
    """Say whether a run is needed without pending input: groups are unpublished or in flight, or the owner died.

    Or a table lags that the last run could not bring up, and it is time to try that again.
    """
    if history.unpublished or history.flow.channels or history.last_outcome is Outcome.CRASHED:
        return True
    return bool(history.lags) and may_bring_up(history)


def build_sensor(ticks: RegionTicks, job: Any, name: str) -> dg.SensorDefinition:
    """Return the sensor of a region; it is on by default."""
    period = ticks.region.parameters.period
    interval = ticks.workplace.settings.sensor_interval_seconds
    seconds = int(period.total_seconds()) if period and period.total_seconds() >= LONG_SECONDS else interval

    what = f"Scans the input of region {ticks.region.name}, and starts a run when a file is pending."
    return _sensor(name, job, seconds, what, ticks.tick)


def one_run_sensor(
    workplace: Workplace, job: dg.JobDefinition, description: str, *, wanted: Callable[[], dg.RunRequest | str]
) -> dg.SensorDefinition:
    """Return a sensor that requests a run if no run of the job is active; it is on by default.

    Args:
        wanted: returns the request, or a reason to skip; a `DrainmarkError` that it raises is a reason, too.
    """

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        waiting = waiting_runs(context.instance, job.name)
        for reason in [*reap_dead(context.instance, job.name), *give_up_retries(context.instance, waiting)]:
            context.log.warning(f"given up: {reason}")
        active = active_runs(context.instance, job.name)
        try:
            answer = _busy(active) if active else wanted()
        except DrainmarkError as error:
            answer = str(error)
        if not isinstance(answer, str):
            answer = _failing(context.instance, job.name) or answer
        if isinstance(answer, str):
            return dg.SensorResult(skip_reason=printable(answer), cursor=context.cursor)
        return dg.SensorResult(run_requests=[answer], cursor=context.cursor)

    return _sensor(job.name, job, workplace.settings.sensor_interval_seconds, description, tick)


def _failing(instance: dg.DagsterInstance, job: str) -> str | None:
    """Return a reason to wait if the newest runs of a job failed: one that fails at once would start every tick."""
    newest = instance.get_run_records(dg.RunsFilter(job_name=job), limit=_NEWEST)
    failed = list(takewhile(lambda record: record.dagster_run.status is dg.DagsterRunStatus.FAILURE, newest))
    if not failed:
        return None
    ended = failed[0].end_time or failed[0].update_timestamp.timestamp()
    seconds = _seconds_left(len(failed) - 1, ended, time.time())
    note = failed[0].dagster_run.tags.get(NOTE_TAG, "see its page in Dagster")
    return f"the last run failed ({note}), the next may begin in {seconds:.0f} s" if seconds > 0 else None


def _sensor(
    name: str,
    job: Any,
    seconds: int,
    description: str,
    tick: Callable[[dg.SensorEvaluationContext], dg.SensorResult],
) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{name}__sensor",
        job=job,
        minimum_interval_seconds=max(1, seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return tick(context)

    return sensor


def build_schedule(ticks: RegionTicks, job: Any, name: str, cron: str) -> dg.ScheduleDefinition:
    """Return a schedule whose runs scan and process; it is on by default."""

    @dg.schedule(
        name=f"{name}__schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Scans the input of region {ticks.region.name}, and processes the pending triggers.",
    )
    def region_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        runs = RegionRuns(instance=context.instance, workplace=ticks.workplace, region=ticks.region)
        _meet(context, ticks.workplace)
        try:
            runs.reap()
            runs.count_dead(ticks.code)
            history = ticks.workplace.history(ticks.region.name)
            reason = ticks.why_not(history)
        except DrainmarkError as error:
            return dg.SkipReason(str(error))
        active = runs.active()
        if reason is None and active:
            reason = _busy(active, history)
        if reason is not None:
            return dg.SkipReason(printable(reason))
        return ticks.request(f"{ticks.region.name}:{context.scheduled_execution_time.isoformat()}", {"scan": True})

    return region_schedule


def _meet(context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext, workplace: Workplace) -> None:
    """Leave word of the instance that ticks; the first tick of a process logs what its configuration lacks."""
    remember_instance(workplace.settings, context.instance)
    if (instance := context.instance.root_directory) not in _met:
        _met.add(instance)
        for lack, line in missing_lines(context.instance):
            context.log.warning(f"{lack}: add `{line}` to dagster.yaml of {instance}")


def _busy(active: list[dg.DagsterRun], history: RegionHistory | None = None) -> str:
    """Return a skip reason that names the active run; for a run that waits for its retry, with the last error."""
    run = active[0]
    if run.is_complete_and_waiting_to_retry:
        error = (history.last_error if history is not None else None) or {}
        file = f" at {error['trigger']}" if error.get("trigger") else ""
        operator = f" in {error['operator']}" if error.get("operator") else ""
        cause = f"{operator}{file}: {error['message']}" if error.get("message") else ""
        return f"run {run.run_id} failed and waits for its retry{cause and f'; last error{cause}'}"
    return f"run {run.run_id} is {run.status.value}: see its page, or end it there"


def _skipped(reason: str, cursor: Cursor) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=dg.SkipReason(printable(reason)), cursor=cursor.to_text())
