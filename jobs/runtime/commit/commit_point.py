"""The commit of groups and skips as consistent states: append the row of each, publish it, tell the listeners.

The append is the commit point (`CheckpointTable.append` in `resources/checkpoints`): from then on the id is final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drainmark.jobs import world
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.records.checkpoint_row import (
    FORMAT_VERSION,
    PLAIN_FORMAT,
    STAGES_FORMAT,
    CheckpointRow,
    RowKind,
)
from drainmark.jobs.protocol.records.manifest import Manifest
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.commit import table_damage
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.publish.publication import publish_group
from drainmark.jobs.runtime.commit.publish.visible_tables import VisibleTables
from drainmark.jobs.runtime.commit.replacement import stage_replaced
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.messages import trigger_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommits:
    """The committer of groups and skips, which take ids of their own; it publishes them and settles their triggers."""

    ledger: Ledger
    visible: VisibleTables

    def commit(self, staged: StagedGroup) -> CheckpointRow:
        """Make a drained group a consistent state, the one commit point; return the row of its last id.

        The work that stages finished late, for ids that are committed already, becomes a `progress` row.

        Raises:
            AccountingError, Fenced: a staged file is gone or changed, or another owner claimed; nothing is committed.
        """
        ledger, store, group, number = self.ledger, self.ledger.outside.store, staged.group, staged.row_id
        manifest = replace(staged.manifest(), replaced=stage_replaced(store, ledger.history, group))
        started = world.monotonic()
        rows = [
            ledger.row(RowKind.STATE, member.sequence_id, attempt=group.attempt, **staged.columns_of(member))
            for member in group.members
        ]
        if staged.progress_id is not None:
            rows = [ledger.row(RowKind.PROGRESS, number, attempt=group.attempt)]
        detail = {**rows[-1].detail, "manifest": manifest.to_json()}
        rows[-1] = replace(rows[-1], detail=detail, format_version=_format_of(staged, manifest))
        table_damage.require_sole_writer(store, ledger.history, table_damage.published_to(ledger.history, manifest))
        staged.verify(store)
        for name, files in (manifest.replaced.files if manifest.replaced else {}).items():
            store.verify(name, files)
        ledger.append([*ledger.open_note(), *rows], number)
        ledger.controller.durations.commits[number] = round(world.monotonic() - started, 4)
        return rows[-1]

    def publish(self, row: CheckpointRow) -> None:
        """Publish the group of a row that this owner committed, and tell the registry."""
        self._publish(row)
        world.pass_point(FailPoint.RESUME_BEFORE)
        self._settle(row)
        world.pass_point(FailPoint.RESUME_AFTER)

    def roll_forward(self, row: CheckpointRow) -> None:
        """Publish the group of a row that an earlier owner committed, or that this owner committed before it failed."""
        self._publish(row)
        self._settle(row)

    def _publish(self, row: CheckpointRow) -> None:
        started, ledger = world.monotonic(), self.ledger
        store, history = ledger.outside.store, ledger.history
        versions = publish_group(store, history.tables, row, ledger.epoch, self.visible, former=history.former)
        ledger.versions.update(versions)
        ledger.controller.durations.publishes[row.sequence_id] = round(world.monotonic() - started, 4)

    def _settle(self, row: CheckpointRow) -> None:
        """Tell the registry which triggers the group committed; only then note the group as done.

        In the other order, a registry failure would leave the triggers pending, and nothing would roll them forward.
        """
        ledger = self.ledger
        settled = []
        for number in range(row.first_id, row.sequence_id + 1):
            state = ledger.history.states.get(number)
            if state is not None and state.trigger_order is not None:
                settled.append((state.trigger_order, number))
        ledger.outside.registry.triggers.settle(ledger.region, ledger.epoch, settled)
        ledger.done(row)

    def skip(self, trigger: Trigger, reason: str) -> int:
        """Commit an empty state for a trigger that cannot be processed; return its id."""
        ledger = self.ledger
        number = ledger.outside.registry.progress.take_ids(ledger.region, ledger.epoch, 1)
        row = ledger.row(
            RowKind.SKIP,
            number,
            group_first=number,
            group_last=number,
            rows_in=0,
            reason=reason,
            **trigger_columns(trigger),
        )
        ledger.append([row], number)
        self.settle_skip(row)
        return number

    def settle_skip(self, row: CheckpointRow) -> None:
        """Tell the registry of a skip; without that the trigger stays pending and would be processed."""
        ledger, registry, order = self.ledger, self.ledger.outside.registry, row.trigger_order
        if row.sequence_id in ledger.history.states and order is not None:
            for trigger in registry.by_order(ledger.region, [order]):
                reason = str(row.detail.get("reason", ""))
                registry.triggers.mark_skipped(ledger.region, ledger.epoch, trigger.id, row.sequence_id, reason)
        ledger.done(row)


def _format_of(staged: StagedGroup, manifest: Manifest) -> int:
    if manifest.has_partitions or any(image.runs for image in manifest.images):
        return FORMAT_VERSION
    return STAGES_FORMAT if manifest.stages or manifest.late or staged.progress_id else PLAIN_FORMAT
