"""Files that leave (`drainmark retract`): a state of its own takes back what an earlier state brought to the tables.

It is a replacement by nothing (see `replacement`): the rows of the earlier state leave tables of rows, and the row
names files with them, so that a rewind brings them back. A table of one row a key gets new rows under the new id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import Manifest, Replaced, StagedFile, TableRole
from drainmark.jobs.protocol.records.triggers import KIND, RETRACTION, RETRACTS
from drainmark.jobs.runtime.commit import table_damage
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.removal.keyed_retraction import KeyedHistory, new_rows
from drainmark.jobs.runtime.commit.replacement import stage_rows
from drainmark.jobs.runtime.commit.rewind_contents import own_tables

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.commit_point import GroupCommits


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractionCommits:
    """The committer of retractions."""

    ledger: Ledger
    groups: GroupCommits

    def retract(self, ids: Sequence[int], keyed: Sequence[KeyedHistory] = (), why: str = "") -> dict[int, int]:
        """Take back states in force, in one commit; return old id -> the id of the state that takes it back.

        All committed groups must be published.

        Args:
            ids: of states that no other state replaced.
            keyed: the tables of one row a key from which they are taken out; the claim said that keys may leave them.

        Raises:
            RetractRefused: nothing was changed.
            Fenced, AccountingError: see `GroupCommits.commit`.
        """
        ledger, store, history = self.ledger, self.ledger.outside.store, self.ledger.history
        first = ledger.outside.registry.progress.take_ids(ledger.region, ledger.epoch, len(ids))
        by = {old: first + place for place, old in enumerate(sorted(ids))}
        attempt = world.token()
        rowed = [table for table in own_tables(store, history) if table.role is TableRole.APPEND and table.is_managed]
        staged = stage_rows(store, history, rowed, ids, (ledger.epoch, attempt))
        files = {table.name: tuple[StagedFile, ...]() for table in rowed}
        for table in keyed:
            rows = new_rows(store, history, table, by, lambda: ledger.outside.engine.session)
            area = store.staging(table.changes.name, ledger.epoch, attempt)
            files[table.changes.name] = area.write(rows, "retracted") if rows is not None and rows.num_rows else ()
        manifest = Manifest(
            files=files,
            upserts=tuple(table.name for table in history.tables if table.is_derived),
            replaced=Replaced(ids=by, files=staged, by_nothing=True),
        )
        row = self._commit(by, manifest, {"attempt": attempt, "why": why or None})
        self.groups.publish(row)
        ledger.report("retract", {"ids": len(by), "sequence_id": row.sequence_id})
        return by

    def _commit(self, by: Mapping[int, int], manifest: Manifest, values: Mapping[str, Any]) -> CheckpointRow:
        ledger, store, last = self.ledger, self.ledger.outside.store, max(by.values())
        group = {"group_first": min(by.values()), "group_last": last, **values}
        rows = [self._row(old, number, group) for old, number in by.items()]
        detail = {**rows[-1].detail, "manifest": manifest.to_json()}
        rows[-1] = replace(rows[-1], detail=detail)
        table_damage.require_sole_writer(store, ledger.history)
        named = (manifest.files, manifest.replaced.files if manifest.replaced else {})
        for name, files in (each for found in named for each in found.items()):
            store.verify(name, files)
        ledger.append([*ledger.open_note(), *rows], last)
        return rows[-1]

    def _row(self, old: int, number: int, values: Mapping[str, Any]) -> CheckpointRow:
        return self.ledger.row(
            RowKind.STATE,
            number,
            format_version=FORMAT_VERSION,
            rows_in=0,
            bytes_in=0,
            process_seconds=0.0,
            drain_seconds=0.0,
            **values,
            trigger_uri=self.ledger.history.states[old].trigger_uri,
            trigger_kind=RETRACTION,
            trigger_identity={KIND: RETRACTION, RETRACTS: old},
        )
