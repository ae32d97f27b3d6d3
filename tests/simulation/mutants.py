"""Faults that are put into the product, to see that a simulation finds them.

Each is a promise's mechanism taken out, of the kind that a change of the protocol might break.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection

from drainmark.jobs.protocol import history
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.runtime.commit import claim_checks, region_owner
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.publish.publication import publish_group
from drainmark.jobs.runtime.commit.publish.visible_tables import VisibleTables
from drainmark.jobs.runtime.commit.removal import retraction
from drainmark.jobs.runtime.input import rewound_sources
from drainmark.jobs.runtime.maintenance import compaction, garbage_collection
from drainmark.jobs.tasks import keyed_files
from drainmark.resources.checkpoints import leftovers
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.keyed import keyed_changes
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.upkeep import garbage
from drainmark.resources.registry.database import Database
from drainmark.resources.registry.progress import RegionProgress
from drainmark.resources.sinks.file_folders import FolderTarget, FolderWriting

Mutant = Callable[[], AbstractContextManager[object]]


def fence_off() -> AbstractContextManager[object]:
    """An owner commits rows although another one claimed since."""
    real = CheckpointTable._commit

    def unchecked(self: Any, verb: str, rows: Any, version: int, check: Any) -> None:
        real(self, verb, rows, version, check if verb == "claim" else lambda found: None)

    return patch.object(CheckpointTable, "_commit", unchecked)


def error_taken_for_success() -> AbstractContextManager[object]:
    """A commit that raised is not looked for in the table."""
    real = commits._read_back

    def trusting(folder: Any, landed: Any, used: Any) -> Any:
        return real(folder, landed, used) or delta_tables.open_table(folder)

    return patch.object(commits, "_read_back", trusting)


def published_before_the_checkpoint() -> AbstractContextManager[object]:
    """The tables show a group before its row is committed."""
    real = Ledger.append

    def early(self: Any, rows: Sequence[CheckpointRow], sequence_id: int) -> None:
        if rows[-1].kind is RowKind.STATE:
            visible = VisibleTables(ledger=self)
            publish_group(self.outside.store, self.history.tables, rows[-1], self.epoch, visible)
        real(self, rows, sequence_id)

    return patch.object(Ledger, "append", early)


def rewinds_upstream_unnoticed() -> AbstractContextManager[object]:
    """A region does not find the states that read rows which a rewind took."""
    return patch.object(rewound_sources, "first_reading", lambda *_: None)


@contextmanager
def ids_used_again() -> Iterator[None]:
    """After a rewind, ids begin again behind the state that is the last."""

    def set_next_id(self: Any, region: str, epoch: int, value: int) -> None:
        with self._database.guarded(region, epoch) as connection:
            _set_next_id(connection, region, value)

    rewound, claimed = history._Fold._rewind, history._Fold._claim

    def rewind(self: Any, row: CheckpointRow) -> None:
        rewound(self, row)
        self.next_id = row.detail["to"] + 1

    def claim(self: Any, row: CheckpointRow) -> None:
        before = self.next_id
        claimed(self, row)
        self.next_id = before

    with _together(
        patch.object(RegionProgress, "set_next_id", set_next_id),
        patch.object(history._Fold, "_rewind", rewind),
        patch.object(history._Fold, "_claim", claim),
    ):
        yield


def _set_next_id(connection: Connection, region: str, value: int) -> None:
    connection.exec_driver_sql("UPDATE drainmark_region SET next_id = ? WHERE region = ?", (value, region))


def gc_a_day_too_early() -> AbstractContextManager[object]:
    """Files that left a table, or a state in force, just now are deleted."""
    return _together(
        patch.object(garbage, "KEPT_SECONDS", 0),
        patch.object(leftovers, "KEPT_SECONDS", 0),
        patch.object(garbage_collection, "_KEPT", dt.timedelta(0)),
    )


def never_done() -> AbstractContextManager[object]:
    """A commit is made again although the table has it."""
    return patch.object(commits, "is_done", lambda *_, **__: False)


def earlier_owners_not_kept_out() -> AbstractContextManager[object]:
    """An older owner of a sink of files renames what it has prepared."""
    return patch.object(FolderTarget, "_keep_out_earlier", lambda self, epoch, place: None)


def not_rolled_forward() -> AbstractContextManager[object]:
    """A claim takes what is committed for published."""

    def forget(ledger: Ledger, groups: object, rewinds: object) -> None:
        for row in ledger.behind:
            ledger.done(row)

    return patch.object(region_owner, "_finish", forget)


@contextmanager
def registry_not_guarded() -> Iterator[None]:
    """The registry takes what an older owner writes."""

    @contextmanager
    def guarded(self: Any, region: str, epoch: int) -> Iterator[Connection]:
        with self.writing() as connection:
            yield connection

    with patch.object(Database, "guarded", guarded):
        yield


def dropped_within_the_horizon() -> AbstractContextManager[object]:
    """Changes are dropped up to the newest image, which a rewind may go behind."""
    real = compaction.drop_changes
    return patch.object(compaction, "drop_changes", lambda owner, oldest: real(owner, owner.history.committed_id))


def withdrawn_files_stay() -> AbstractContextManager[object]:
    """A rewind leaves the files of withdrawn ids in the folder of a sink."""
    return patch.object(FolderWriting, "withdraw", lambda self, first, last, find: None)


def keys_do_not_return() -> AbstractContextManager[object]:
    """A rewind gives the keys of a visible table no earlier rows."""
    real = ManagedTable.rewind_upsert

    def late(self: Any, version: int, restored: Any) -> Any:
        return real(self, version, replace(restored, to=10**9, since=10**9))

    return patch.object(ManagedTable, "rewind_upsert", late)


def others_not_noticed() -> AbstractContextManager[object]:
    """A region commits on top of what others did to its table."""
    return patch.object(SoleWriter, "require", lambda self, version: None)


def older_tables_taken_for_the_newest() -> AbstractContextManager[object]:
    """A region goes on with tables that an older backup brought back, behind its registry and its other sinks."""
    real = claim_checks._why_lost

    def trusting(info: Any, found: Any, region: str) -> str:
        return "" if info.newest_id >= found.next_id else real(info, found, region)

    return patch.object(claim_checks, "_why_lost", trusting)


def keys_keep_what_is_retracted() -> AbstractContextManager[object]:
    """A retraction takes nothing out of tables of one row a key."""
    return patch.object(retraction, "new_rows", lambda *_: None)


def deleted_keys_stay() -> AbstractContextManager[object]:
    """A key whose last row is gone is shown."""
    return _together(*(patch.object(module, "present", lambda rows: rows) for module in (keyed_changes, keyed_files)))


@contextmanager
def _together(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with contexts[0]:
        if contexts[1:]:
            with _together(*contexts[1:]):
                yield
        else:
            yield


MUTANTS: Mapping[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        fence_off,
        error_taken_for_success,
        published_before_the_checkpoint,
        ids_used_again,
        gc_a_day_too_early,
        never_done,
        earlier_owners_not_kept_out,
        not_rolled_forward,
        registry_not_guarded,
        dropped_within_the_horizon,
        withdrawn_files_stay,
        keys_do_not_return,
        others_not_noticed,
        older_tables_taken_for_the_newest,
        rewinds_upstream_unnoticed,
        keys_keep_what_is_retracted,
        deleted_keys_stay,
    )
}
"""The mutants by name."""
