"""The loop of `run`: scan, claim, process, hand over; after a failure wait and retry, as Dagster does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Halted, InputChanged, InputMissing, Interrupted, Retry, SparkLost, UsageError
from drainmark.jobs.protocol.failure_policy import is_lifted
from drainmark.jobs.protocol.history import UNCLEAN, RegionHistory
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.runs.failures_before_claim import claim_and_halt, count_failure, count_killed
from drainmark.orchestration.runs.halt_hook import halt_for_input, make_up
from drainmark.orchestration.runs.idle_wait import REST_SECONDS
from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.preparation import analysed_run, tried_first_use
from drainmark.orchestration.runs.region_runs import end_predecessor
from drainmark.orchestration.workplace.application_identity import code_digest
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.region_sources import has_threads, settle_of
from drainmark.orchestration.workplace.run_processes import on_its_way
from drainmark.orchestration.workplace.workplace import Opened, Workplace

if TYPE_CHECKING:
    from drainmark.jobs.errors import DrainmarkError
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.region_run import GroupReport, RegionRun
    from drainmark.jobs.scan.findings import ScanResult

_SCAN_SECONDS = 1.0
_SETTLE_PATIENCE_SECONDS = 60.0
"""Seconds after which a file that still changes is left to a later run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `run`.

    Attributes:
        seconds: keep scanning for this time; 0: end when nothing is pending.
        max_group: largest number of triggers in a group, None for the setting.
        attempts: end with the error after this number of failures in a row; None: go on until the region halts.
    """

    seconds: float = 0.0
    max_group: int | None = None
    attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The callbacks that report the progress of a run.

    Attributes:
        on_group: called when a group is published; the second argument is the number of pending triggers.
        on_note: called with a message for a person.
        on_step: called with a step of the protocol and its numbers.
        on_rest: called when no work is running any more: after a pass over the groups, a batch, or a failure.
    """

    on_group: Callable[[GroupReport, int], None] = lambda report, pending: None
    on_note: Callable[[str], None] = lambda text: None
    on_step: Callable[[str, Any], None] = lambda step, numbers: None
    on_rest: Callable[[], None] = lambda: None


@dataclass(slots=True, kw_only=True)
class RegionLoop:
    """The loop over one region, used once.

    Attributes:
        reports: the groups that it published.
        failures: number of failures in a row, without a group in between.
        refused: (uri, reason) of inputs that the last scan found and cannot read.
        unsettled: number of files that the last scan skipped, because they may still be written to.
        has_claimed, has_scanned: at least once.
        code: digest of the code that it runs.
        started: when it began, by the monotonic clock.
    """

    workplace: Workplace
    opened: Opened
    region: RegionPlan
    options: RunOptions
    interruption: Interruption
    watch: Watch
    run_id: str
    reports: list[GroupReport] = field(default_factory=list)
    failures: int = 0
    refused: Sequence[tuple[str, str]] = ()
    unsettled: int = 0
    has_claimed: bool = False
    has_scanned: bool = False
    code: str = field(init=False)
    started: float = 0.0
    _scanned_at: float = 0.0
    _active: RegionRun | None = None
    _has_owned: bool = False
    _said: str = ""

    def __post_init__(self) -> None:
        self.code = code_digest(self.opened.application.origin, self.workplace.settings.project_root)

    def run(self) -> dict[str, Any]:
        """Process until idle; return the summary that `run --json` prints.

        Raises:
            Halted, Owned, Fenced, Interrupted, DrainmarkError: the run is over; the region was handed over.
        """
        self.started = world.monotonic()
        while True:
            self._has_owned = False
            try:
                if self._is_work_there():
                    self._process()
                return self.summary()
            except Exception as error:
                self.watch.on_rest()
                self._back_off(error)

    def summary(self) -> dict[str, Any]:
        """Return the outcome of the run for the region, see `summary_of`."""
        return summary_of([self])

    def _step(self, step: str, numbers: Any) -> None:
        from drainmark.jobs.runtime.group.group_report import trouble_of

        self.watch.on_step(step, numbers)
        if (trouble := trouble_of(step, numbers)) is not None:
            self.watch.on_note(f"{self.region.name}: {trouble}")

    # --- one pass ----------------------------------------------------------------------------------------------------

    def _prepared(self) -> RegionRun:
        """Return a run that may claim: analysed, and its functions tried."""
        with on_its_way(self.workplace, self.region.name, self.run_id):
            run = analysed_run(
                self.workplace,
                self.opened,
                self.region,
                interrupted=self.interruption.event,
                run_id=self.run_id,
                report=self._step,
                max_group=self.options.max_group,
            )
            run.hosted.takes_starts = self._hosts_starts
            run.while_waiting = self._look_again
            self.interruption.arm()
            tried_first_use(self.workplace, run)
        return run

    def _process(self) -> None:
        run = self._prepared()
        self.interruption.pause(0)
        self._active = run
        self.has_claimed = True
        try:
            run.claim()
            end_predecessor(self.workplace, run)
            self._drain(run)
        except BaseException as error:
            self._has_owned = run.owner.epoch > 0
            run.hand_over(error)
            raise
        finally:
            self._active = None
        run.hand_over()

    def _drain(self, run: RegionRun) -> None:
        while True:
            self._groups(run)
            if not self._waits_for_more():
                return

    def _groups(self, run: RegionRun) -> None:
        """Process the pending triggers. Without any, `run.groups` still obeys a request to halt."""
        for report in run.groups():
            self.reports.append(report)
            self.failures = 0
            self.watch.on_group(report, self._pending())
        self.watch.on_rest()

    def _is_work_there(self) -> bool:
        """Scan until there is work or the time is over; return whether there is work, and so a reason to claim."""
        from drainmark.jobs.runtime.messages import halted_error

        allowed = self.region.parameters.max_consecutive_reset_attempts
        count_killed(self.workplace, self.region.name, allowed=allowed, code=self.code)
        history = self.workplace.history(self.region.name)
        has_changed = is_lifted(history, self.code)
        if history.halt is not None and not history.unpublished and not has_changed:
            make_up(self.workplace, self.region.name, history)
            raise halted_error(self.region.name, history)
        self._scan()
        if has_changed or history.unpublished or history.flow.channels or history.last_outcome in UNCLEAN:
            return True
        if history.lags and _may_bring_up(history, self.run_id):  # else its tables would wait for more input
            return True
        if self._pending() > 0 or self._hosts_starts or _is_at_odds(self.workplace, self.region.name):
            return True
        return self._waits_for_more(scanned=True)

    @property
    def _hosts_starts(self) -> bool:
        """Say whether starts with threads of their own run in this run: only if it has time (`seconds`)."""
        return bool(self.options.seconds) and has_threads(self.region)

    def _waits_for_more(self, *, scanned: bool = False) -> bool:
        """Scan until a trigger is pending, or until time is over and no file settles; return whether one is pending."""
        began = world.monotonic()
        settle_until = began + _SETTLE_PATIENCE_SECONDS
        settle = settle_of(self.region)
        while True:
            if not scanned:
                self._scan()
            scanned = False
            now = world.monotonic()
            left = self.started + self.options.seconds - now
            if self._pending():
                return True
            if self.unsettled and now < settle_until:
                self.interruption.pause(max(0.05, min(settle, _SCAN_SECONDS)))
            elif left > 0:
                self.interruption.pause(min(_SCAN_SECONDS, self._period() or _SCAN_SECONDS, left))
                if self._active is not None:
                    if now - began >= REST_SECONDS:
                        self._active.rest()
                    self._groups(self._active)
            else:
                return False

    def _look_again(self) -> None:
        """Scan while stages are still at work, so that new input need not wait for the slowest stage."""
        now = world.monotonic()
        is_due = now - self._scanned_at >= min(_SCAN_SECONDS, self._period() or _SCAN_SECONDS)
        if is_due and now - self.started < self.options.seconds:
            self._scan()

    def _scan(self) -> None:
        self._scanned_at = world.monotonic()
        try:
            found: ScanResult = scan_region(self.workplace, self.region, tick=self._tick())
        except (InputChanged, InputMissing) as error:
            raise self._halt(error) from error
        remember(self.workplace, self.opened, self.region)
        self.refused, self.unsettled = found.refused, found.unsettled

    def _tick(self) -> Tick:
        """Return the rule by which the next scan cuts a slice: the first scan cuts at once.

        Later scans keep to the period if the run has time; without time, they cut the backlog into slices.
        """
        if not self.has_scanned:
            self.has_scanned = True
            return Tick.NOW
        return Tick.DUE if self.options.seconds else Tick.BACKLOG

    def _period(self) -> float:
        period = self.region.parameters.period
        return period.total_seconds() if period is not None else 0.0

    def _halt(self, error: InputChanged | InputMissing) -> Halted:
        if self._active is not None:
            return halt_for_input(self._active.owner, self.region, error)
        return claim_and_halt(self.workplace, self.region, error, self.run_id)

    def _pending(self) -> int:
        return self.workplace.registry.pending_count(self.region.name)

    # --- after a failure ---------------------------------------------------------------------------------------------

    def _back_off(self, error: Exception) -> None:
        """Wait before the next attempt; raise the error if a retry is not allowed or cannot help."""
        from drainmark.jobs.runtime.region_run import classified

        error = classified(error)
        if isinstance(error, SparkLost):
            self.workplace.engine.discard()
        if isinstance(error, Interrupted):
            raise error
        allowed = self.region.parameters.max_consecutive_reset_attempts
        if not self._has_owned and not isinstance(error, UsageError):  # a wrong request is not a failure of the region
            before = error
            error = count_failure(
                self.workplace, self.region.name, error, allowed=allowed, code=self.code, run_id=self.run_id
            )
            if error is not before:
                raise error from before
        # If a store stops answering during a run, the run waits for it, even if it cannot record a scan.
        is_outage = self.has_claimed and error.retry is Retry.WAIT
        if not (is_outage or error.retry in (Retry.ATTEMPT, Retry.RENEW)):
            raise error
        self.failures += 1
        # The region halts after its budget. Failures that could not be counted end the run here.
        budget = allowed + 2
        if self.failures >= min(self.options.attempts or budget, budget):
            raise error
        said, seconds = _said(error), self.workplace.settings.pause_seconds(self.failures)
        news, self._said = "the same" if said == self._said else said, said
        self.watch.on_note(f"{self.region.name}: failure {self.failures}: {news}; again in {seconds:g} s")
        self.interruption.pause(seconds)


def summary_of(turns: Sequence[RegionLoop]) -> dict[str, Any]:
    """Return the outcome of a run for a region, from its turns in their order; all keys are always present."""
    last = turns[-1]
    history = last.workplace.history(last.region.name)
    reports = [report for turn in turns for report in turn.reports]
    has_claimed = any(turn.has_claimed for turn in turns)
    return {
        "region": last.region.name,
        "outcome": "processed" if reports else "recovered" if has_claimed else "nothing to do",
        "groups": len(reports),
        **totals(reports, ("triggers", "rows_in", "rows_quarantined", "bytes_in")),
        "first_sequence_id": reports[0].first_id if reports else None,
        "last_sequence_id": reports[-1].last_id if reports else None,
        "committed_sequence_id": history.committed_id,
        "epoch": history.epoch,
        "unsettled": last.unsettled,
        "refused": [{"file": uri, "reason": reason} for uri, reason in last.refused],
        "seconds": round(world.monotonic() - turns[0].started, 3),
        "run_id": last.run_id,
    }


def totals(reports: Sequence[Any], names: Sequence[str]) -> dict[str, int]:
    """Return the sums of some numbers of reports, by name."""
    return {name: sum(getattr(report, name) for report in reports) for name in names}


def _said(error: DrainmarkError) -> str:
    """Return the text of a failure that is tried again.

    What is wrong with code or input needs nobody before the region is halted; what is wrong with a machine does.
    """
    return error.told if error.retry is Retry.ATTEMPT else str(error)


def _is_at_odds(workplace: Workplace, region: str) -> bool:
    """Say whether registry and checkpoint table differ, as after a restore of one of them: then the claim says so.

    A region without new input would lack what it committed, and nobody would be told.
    """
    from drainmark.jobs.runtime.commit.claim_checks import read_facts

    return bool(read_facts(workplace.registry, region, lambda: workplace.history(region))[1])


def _may_bring_up(history: RegionHistory, run_id: str) -> bool:
    """Say whether a run may claim a region for tables that lag; if it has tried before, as seldom as a sensor."""
    from drainmark.jobs.runtime.commit.publish.visible_tables import may_bring_up

    is_tried = history.last_claim is not None and history.last_claim.run_id == run_id
    return not is_tried or may_bring_up(history)


def run_application(
    workplace: Workplace,
    opened: Opened,
    regions: Sequence[RegionPlan],
    *,
    options: RunOptions,
    watch: Watch,
    run_id: str,
    interruption: Interruption,
) -> list[RegionLoop]:
    """Run regions one after the other; if one fails, the others still run.

    If `options.seconds` is set, several regions take turns until that time is over. Turns that did something are
    returned, and the newest of each region.

    Raises:
        DrainmarkError: the first failure, after all regions have run; `Interrupted` at once.
    """
    deadline = world.monotonic() + options.seconds
    turns = options if len(regions) == 1 else replace(options, seconds=0.0)
    done: list[RegionLoop] = []
    failed: dict[str, Exception] = {}
    while True:
        for region in regions:
            if region.name in failed:
                continue
            loop = RegionLoop(
                workplace=workplace,
                opened=opened,
                region=region,
                options=turns,
                interruption=interruption,
                watch=watch,
                run_id=run_id,
            )
            try:
                loop.run()
            except Interrupted:
                raise
            except Exception as error:
                failed[region.name] = error
                if len(failed) > 1:  # the first one is raised
                    watch.on_note(f"{region.name}: {error}")
            done = [turn for turn in done if turn.region is not region or turn.has_claimed]  # idle ones are many
            done.append(loop)
        if turns is options or len(failed) == len(regions) or world.monotonic() >= deadline:
            break
        interruption.pause(min(_SCAN_SECONDS, deadline - world.monotonic()))
    if failed:
        raise next(iter(failed.values()))
    return done
