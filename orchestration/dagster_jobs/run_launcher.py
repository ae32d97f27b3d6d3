"""Dagster's run launcher with a spare process, which has made its imports before it gets a run.

A run of Dagster's default launcher begins with imports, and a file waits for them. Here the daemon keeps one idle child
that has made all imports except those of the author's code. With a run for each file, a file's rows are there after 4.6
seconds with it and after 10.0 without (`bench --only landing`, two slow cores); a run that lingers has no gain. Runs
that cannot use it are launched in the default way. `sensors` decides when a run begins.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

import dagster as dg
from dagster import DefaultRunLauncher

from drainmark.orchestration.dagster_assets.metadata import PROCESS_TAG
from drainmark.orchestration.dagster_jobs.run_monitor import process_of, tag_process
from drainmark.orchestration.dagster_jobs.spare_run import Spare

if TYPE_CHECKING:
    from drainmark.orchestration.dagster_jobs.dagster_internals import LaunchRunContext

_log = logging.getLogger(__name__)

SETTLE_SECONDS = 4.0
"""Seconds from a launch until the next spare is made: its imports would slow down the run."""


@dataclass(slots=True)
class Spares:
    """The spare process, at most one at a time, made after each launch of this process."""

    _spare: Spare | None = None
    _maker: threading.Timer | None = None
    _made: list[Spare] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> Spare | None:
        """Return the spare process if it is ready; it then belongs to the caller. If not, a later run may take it."""
        with self._lock:
            if self._spare is None or not self._spare.is_ready():
                return None
            spare, self._spare = self._spare, None
            return spare

    def make_soon(self) -> None:
        with self._lock:
            if self._maker is not None:
                self._maker.cancel()
            self._maker = threading.Timer(SETTLE_SECONDS, self._make)
            self._maker.daemon = True
            self._maker.start()

    def _make(self) -> None:
        with self._lock:
            if self._spare is None or not self._spare.process.is_alive():
                if not self._made:  # at exit, before Python waits for its children, which wait for it
                    Finalize(None, self._end, exitpriority=1)
                self._spare = Spare.start()
                self._made = [*(spare for spare in self._made if spare.process.is_alive()), self._spare]

    def _end(self) -> None:
        """End the spare, and interrupt the runs: they hand over before they end (`orchestration.runs.interruption`)."""
        if self._maker is not None:
            self._maker.cancel()
        for spare in self._made:
            if spare.process.is_alive():
                spare.process.terminate()


class WarmRunLauncher(DefaultRunLauncher):
    """Dagster's default launcher, but runs of this project's code location on this host save the time of imports.

    It has no configuration. A run in a spare process is a child of the process that launched it, the daemon, and ends
    with it, as a run of the default launcher ends with its code server.
    """

    _spares = Spares()  # one for the process: a daemon may load its instance again

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run in the spare process if it can take the run, else as the default launcher does."""
        run = context.dagster_run
        try:
            order = self._order_for(run)
        except Exception as error:  # any error means that Dagster's internals have changed
            _log.warning("Dagster %s is other inside than expected, runs begin later: %r", dg.__version__, error)
            super().launch_run(context)
            return
        if order is None or not self._launch_warm(run, order):
            super().launch_run(context)
        self._spares.make_soon()

    def _order_for(self, run: dg.DagsterRun) -> str | None:
        from drainmark.orchestration.dagster_jobs.dagster_internals import order_for

        self._run_ids.add(run.run_id)  # `join` waits for these runs
        return order_for(run, self._instance)

    def _launch_warm(self, run: dg.DagsterRun, order: str) -> bool:
        spare = self._spares.take()
        if spare is None or spare.process.pid is None:
            return False
        self._instance.add_run_tags(run.run_id, tag_process(run.run_id, spare.process.pid))
        if not spare.give(order):
            self._instance.add_run_tags(run.run_id, {PROCESS_TAG: ""})
            return False
        threading.Thread(target=self._watch, args=(spare, run.run_id), name="run's end", daemon=True).start()
        return True

    def _watch(self, spare: Spare, run_id: str) -> None:
        """Report a run as failed if its process ended before the run had finished."""
        spare.process.join()
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(
                run, f"the process of the run, pid {spare.process.pid}, ended with exit code {spare.process.exitcode}"
            )

    def terminate(self, run_id: str) -> bool:
        """Interrupt the run, as Dagster's Terminate does."""
        run = self._instance.get_run_by_id(run_id)
        process = process_of(run.tags, run_id) if run is not None and not run.is_finished else None
        if run is None or process is None or _GRPC_INFO_TAG in run.tags:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        if not process.is_alive:
            return False
        self._instance.report_run_canceling(run)
        os.kill(process.pid, signal.SIGINT)
        return True


_GRPC_INFO_TAG = ".dagster/grpc_info"
"""Tag of runs that a code server started."""
