"""The quarantine of one attempt at a group: rows that cannot be read, rows that operators refuse, and the number of
rows that do not meet an expectation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.operators.row_wise.expect import Expect, OnFail
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.input.group_input import GroupInput
from drainmark.jobs.runtime.input.quarantine_rows import put_aside, quarantine_table
from drainmark.jobs.runtime.input.rejected_rows import RejectedRows, counted, read_by, stage_refused
from drainmark.jobs.runtime.spark_failures import blaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.resources.delta.staging import Staging


@dataclass(slots=True, kw_only=True)
class GroupQuarantine:
    """The staging of the quarantine of a group; used once.

    Attributes:
        taking: takes in the group's input; it has the rows that cannot be read.
        pool: of the threads that stage refused rows.
    """

    attempt: Attempt
    executors: OperatorExecutors
    region: RegionPlan
    taking: GroupInput
    pool: ThreadPoolExecutor
    _refused: list[Future[RejectedRows]] = field(default_factory=list)
    _unmet: dict[str, Future[RejectedRows]] = field(default_factory=dict)

    def put_aside(self, operator: Operator, result: StepResult) -> None:
        """Quarantine the rows that an operator could not interpret."""
        if result.bad is None:
            return
        found = result.bad.limit(CAPS.bad_rows + 1)
        rows = blaming(self.region, operator, lambda: found.toArrow()).to_pylist()  # noqa: PLW0108 - looked up when called
        put_aside(self.taking.aside, operator, rows, self.attempt.group, halts=result.bad_halts)

    def expect(self, operator: Operator, result: StepResult, scanned: Mapping[str, DataFrame]) -> None:
        """Begin to count the rows that do not meet an expectation; stage them if it quarantines them."""
        if not isinstance(operator, Expect) or result.unmet is None:
            return
        if operator.on_fail == OnFail.QUARANTINE:
            self.refuse(operator, result.unmet, scanned)
            self._unmet[operator.name] = self._refused[-1]
        else:
            self._unmet[operator.name] = self.pool.submit(self._count, operator, result.unmet)

    def refuse(self, operator: Operator, frame: DataFrame, scanned: Mapping[str, DataFrame]) -> None:
        """Begin to stage the rows that an operator puts into quarantine.

        Args:
            scanned: the rows as read, by stream.
        """
        read = read_by(operator, self.region, scanned)
        self._refused.append(self.pool.submit(self._stage, operator, frame, read))

    def await_rows(self) -> None:
        """Wait until the refused rows are staged and counted.

        Raises:
            ExpectationUnmet: rows do not meet an expectation that halts the region.
        """
        for refused in (*self._refused, *self._unmet.values()):
            refused.result()

    def staged(self) -> dict[str, StagedTable]:
        """Stage the rows that could not be read beside the refused rows; no file if there are none."""
        refused = [future.result() for future in self._refused]
        if not self.taking.sources and not refused and not self.taking.aside.records:
            return {}
        name = quarantine_table(self.region).name
        files = tuple(file for refusals in refused for file in refusals.files)
        rows = self.taking.quarantine_rows()
        if rows is not None:
            files += self._staging().write(rows, "rows")
        staged, counted = sum(file.rows for file in files), sum(self.by_id().values())
        if staged != counted:
            raise AccountingError(f"{counted} rows are to be quarantined, and {staged} are staged in {name}")
        return {name: StagedTable(files=files)}

    def by_id(self) -> dict[int, int]:
        """Return the number of quarantined rows by id."""
        counts = Counter(self.taking.quarantined) + Counter(self.taking.aside.counts())
        for refused in self._refused:
            counts.update(refused.result().counts)
        return dict(counts)

    def unmet(self) -> dict[int, dict[str, int]]:
        """Return the number of rows by expectation that they do not meet, by id; only ids that have some."""
        found: dict[int, dict[str, int]] = {}
        for name, counting in self._unmet.items():
            for number, rows in counting.result().counts.items():
                found.setdefault(number, {})[name] = rows
        return found

    def _count(self, operator: Expect, unmet: DataFrame) -> RejectedRows:
        """Count the rows that do not meet an expectation; runs in a thread of its own, beside the outputs."""
        with self.attempt.engine.tagged(self.attempt.tag):
            return blaming(self.region, operator, lambda: counted(operator, unmet, self.attempt.group))

    def _stage(self, operator: Operator, frame: DataFrame, read: DataFrame | None) -> RejectedRows:
        """Stage the rows that one operator refused; runs in a thread of its own, beside the outputs."""

        def stage() -> RejectedRows:
            return stage_refused(
                operator,
                frame,
                read=read,
                group=self.attempt.group,
                executor=self.executors.of(operator),
                staging=self._staging(),
            )

        with self.attempt.engine.tagged(self.attempt.tag):
            return blaming(self.region, operator, stage)

    def _staging(self) -> Staging:
        group = self.attempt.group
        return self.attempt.outside.store.staging(quarantine_table(self.region), group.epoch, group.attempt)
