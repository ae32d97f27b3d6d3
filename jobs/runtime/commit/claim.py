"""The claim of a region: a row with a new epoch, which fences off older owners, and the cleanup of their files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from drainmark.jobs.protocol.claimed_code import Claim, Code
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.checkpoint_row import RowKind, format_of
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.commit.claim_checks import ready, require_takeover
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.publish.outer_sinks import newest_of_all
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import entry_of
from drainmark.jobs.state.handlers.data_store import DataStore
from drainmark.jobs.state.handlers.stored_checkpoints import StoredCheckpoints

_claims_here: set[str] = set()
"""The attempts of the claim rows that were sent in this process; nobody else's row has one of them."""


def fence(
    ledger: Ledger, tables: Sequence[RegionTable], code: Code, *, is_verb: bool, deleting: Collection[str] = ()
) -> Sequence[RegionTable]:
    """Commit the claim row, under the lease; return the region's tables.

    Args:
        is_verb: a rewind or a repair follows, which also takes along sinks that the code has no more.
        deleting: see `claim_checks.ready`.

    Raises:
        Fenced: another owner claimed at the same moment.
        RegistryLost, StateIncompatible, StatesMoved, SchemaMismatch, InFlightLost: see `claim_checks.ready`.
    """
    store, registry, region = ledger.outside.store, ledger.outside.registry, ledger.region
    ledger.history, known = ready(ledger.outside, region, tables, code, deleting)
    previous, info = _end_of_last(ledger), registry.region_info(region)
    # What is outside may be ahead of a home from a backup: it must not take what follows for an older owner's.
    epoch, newest = newest_of_all(store, known, ledger.history.former if is_verb else ())
    stored = _stored_epoch(ledger.outside.state_store, known)
    ledger.epoch = max(ledger.history.epoch, info.epoch, epoch, stored) + 1
    ledger.controller.claimed(ledger.history, info.state, ledger.epoch)
    last_error = ledger.history.last_error
    claim = Claim(
        previous=previous,
        error=last_error if previous is Outcome.FAILED else None,
        tables=tuple(known),
        code=ledger.identity.code,
        declared=code,
    )
    number = max(ledger.history.next_id, info.next_id, newest + 1)  # an id that was taken is never used again
    row = ledger.row(RowKind.CLAIM, number, format_version=format_of(known), **claim.to_detail())
    _claims_here.add(row.attempt)  # before the commit, whose outcome may stay unknown
    store.checkpoint.claim(row)
    # Read again: until this commit, an older owner that had been stopped could still commit a group.
    ledger.history = store.checkpoint.history()
    ledger.lags = dict(ledger.history.lags)
    registry.progress.set_epoch(region, ledger.epoch)
    registry.progress.set_next_id(region, ledger.epoch, ledger.history.next_id)
    if info.last_error and not ledger.history.attempts:  # no attempt has failed since
        registry.progress.clear_error(region, ledger.epoch)
    ledger.controller.tell()
    if code.operators:
        require_takeover(ledger.history, region, code)
    attempts = ledger.history.attempts
    ledger.report("claim", {"epoch": ledger.epoch, "previous": previous.value, "attempts": attempts})
    return known


def _stored_epoch(store: DataStore | None, tables: Sequence[RegionTable]) -> int:
    """Return the newest epoch of an owner that wrote handlers' checkpoints of these states to a store of their own."""
    if store is None:
        return 0
    names = [name for table in tables if store.exists(name := entry_of(table.name))]
    return max((StoredCheckpoints(store.create(name)).newest_epoch() for name in names), default=0)


def _end_of_last(ledger: Ledger) -> Outcome:
    """Return how the last owner ended; a run in this process did not crash: a disk failed under its release.

    The same run in another process did: Dagster may resume a run whose worker died.
    """
    outcome, claim, run = ledger.history.last_outcome, ledger.history.last_claim, ledger.identity.run_id
    is_here = claim is not None and claim.run_id == run and claim.attempt in _claims_here
    return Outcome.INTERRUPTED if outcome is Outcome.CRASHED and is_here else outcome


def collect_orphans(ledger: Ledger) -> None:
    """If the last owner crashed, delete staged files of dead epochs that no row of the checkpoint table names.

    Rows that a rewind withdrew still name their files, because a reader may hold a version of a table that has them.
    Call this when every committed group is published: it fences the tables, which then refuse all older epochs.
    """
    last = ledger.history.last_claim
    if last is None or Claim.from_row(last).previous is not Outcome.CRASHED:
        return
    tables = (table for table in ledger.history.tables if table.is_managed and table.role is not TableRole.UPSERT)
    removed = ledger.outside.store.leftovers.collect_orphans([table.name for table in tables], ledger.epoch)
    ledger.report("collect", {"folders": removed})
