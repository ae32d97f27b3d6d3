"""Rows of an owner that take no id: the region is halted, is resumed, or refuses a trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.errors import DrainmarkError, Halted, SplitBrain
from drainmark.jobs.protocol.failure_policy import UNPUBLISHABLE, is_lifted
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.transitions import Event
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.table_damage import require_sole_writer
from drainmark.jobs.runtime.messages import described, halted_error, trigger_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Halts:
    """The committer of halts, resumes, and refusals of triggers."""

    ledger: Ledger

    def halt(
        self,
        reason: str,
        *,
        trigger: str | None = None,
        operator: str | None = None,
        error: Mapping[str, Any] | None = None,
        event: Event = Event.ATTEMPTS_EXHAUSTED,
        code: str | None = None,
    ) -> Halted:
        """Commit the halt, call the listeners, and return the error to raise.

        Every halt goes through here. After a crash right after the commit, others call `Outside.on_halt`.

        Args:
            operator: by default that of the error.
            event: HALT_ASKED if an operator asked for the halt: then no rewind ends it.
            code: digest of code that failed before it could claim: other code lifts the halt by itself.
        """
        ledger = self.ledger
        row = ledger.row(
            RowKind.HALT,
            ledger.history.committed_id,
            reason=reason,
            trigger=trigger,
            operator=operator or (error or {}).get("operator"),
            error=dict(error) if error else None,
            code=code,
            asked=event is Event.HALT_ASKED or None,
        )
        ledger.note([*ledger.open_note(), row])
        ledger.controller.halted(event, ledger.history)
        ledger.report("halt", {"reason": reason, "trigger": trigger})
        ledger.outside.on_halt(ledger.history)
        return halted_error(ledger.region, ledger.history)

    def halt_for(self, error: DrainmarkError) -> Halted:
        """Halt a region whose tables refuse committed rows; write only one halt row for the same error."""
        ledger, halt = self.ledger, self.ledger.history.halt
        if halt is not None and (halt.detail.get("error") or {}).get("message") == error.message:
            return halted_error(ledger.region, ledger.history)
        reason = error.message if isinstance(error, SplitBrain) else UNPUBLISHABLE
        return self.halt(reason, error=described(error))

    def halt_where_damaged(self) -> None:
        """Halt a region if others changed its tables; during a rewind do nothing, since the rewind repairs them.

        Raises:
            Halted: others changed a table.
        """
        ledger = self.ledger
        if ledger.history.rewinding:
            return
        try:
            require_sole_writer(ledger.outside.store, ledger.history)
        except SplitBrain as error:
            raise self.halt_for(error) from error

    def resume(self, reason: str) -> None:
        """Give the region all its attempts again."""
        ledger = self.ledger
        ledger.note([ledger.row(RowKind.RESUME, ledger.history.committed_id, reason=reason)])
        ledger.controller.moved(Event.RESUMED, ledger.history)

    def lift(self) -> None:
        """Lift a halt of code that failed before it could claim, if this owner has other code."""
        if is_lifted(self.ledger.history, self.ledger.identity.code):
            self.resume("the code that failed is other code now")

    def refuse(self, triggers: Sequence[Trigger], reason: str, *, anew: bool = False) -> None:
        """Note that triggers will never be processed, and why.

        Args:
            anew: they are slices that are cut anew: they leave the order.
        """
        ledger, to = self.ledger, self.ledger.history.committed_id
        facts: dict[str, Any] = {"reason": reason, "anew": anew or None}
        ledger.note([ledger.row(RowKind.REFUSED, to, **trigger_columns(each), **facts) for each in triggers])
