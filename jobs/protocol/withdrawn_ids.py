"""States that rewinds withdrew and that were not processed again: their files are pending once more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from drainmark.jobs.protocol.id_runs import IdRows, Ids
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.triggers import DIGESTS


class Withdrawn:
    """The withdrawn states, without those of files that were processed, skipped or refused since; immutable.

    Only the identity of such a file is noted; the rows that are left are found on request.

    Args:
        ids: of the withdrawn states.
    """

    __slots__ = ("_answered", "_by_identity", "_count", "ids")

    def __init__(self, ids: Ids | None = None) -> None:
        self.ids = ids if ids is not None else Ids()
        self._answered: dict[tuple[Any, ...], int] = {}  # identity -> its place; shared with objects that continue this
        self._count = 0
        self._by_identity: dict[tuple[Any, ...], int] | None = None

    def answered_by(self, row: CheckpointRow) -> Withdrawn:
        """Return these states without those of the row's file."""
        identity = identity_of(row)
        if not self.ids or self._has(identity):
            return self
        new = Withdrawn(self.ids)
        new._by_identity = self._by_identity
        new._answered = self._answered
        if len(self._answered) != self._count:  # another history has already continued this one
            new._answered = {known: place for known, place in self._answered.items() if place < self._count}
        new._answered[identity] = self._count
        new._count = self._count + 1
        return new

    def with_states(self, ids: Ids, rows: IdRows) -> Withdrawn:
        """Return these states and further ones; of a file's states, the newest counts."""
        found = {identity: number for identity, number in self._identities(rows).items() if not self._has(identity)}
        found.update((identity_of(row), number) for number, row in rows.among(ids))
        new = Withdrawn(Ids.of(found.values()))
        new._by_identity = found
        return new

    def left(self, rows: IdRows) -> Ids:
        """Return the ids of the states that are left."""
        if not self._count:
            return self.ids
        return Ids.of(number for identity, number in self._identities(rows).items() if not self._has(identity))

    def in_order(self, rows: IdRows) -> tuple[CheckpointRow, ...]:
        """Return the rows of the states that are left, in their input order."""
        found = (row for _, row in rows.among(self.left(rows)))
        return tuple(sorted(found, key=lambda row: (row.trigger_order or 0, row.sequence_id)))

    def _has(self, identity: tuple[Any, ...]) -> bool:
        return self._answered.get(identity, self._count) < self._count

    def _identities(self, rows: IdRows) -> Mapping[tuple[Any, ...], int]:
        if self._by_identity is None:
            self._by_identity = {identity_of(row): number for number, row in rows.among(self.ids)}
        return self._by_identity

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Withdrawn):
            return NotImplemented
        return (self.ids, self._seen()) == (other.ids, other._seen())

    __hash__ = None  # type: ignore[assignment]

    def _seen(self) -> set[tuple[Any, ...]]:
        return {identity for identity in self._answered if self._has(identity)}


def identity_of(row: CheckpointRow) -> tuple[Any, ...]:
    """Return the identity of the file or slice of a row: its uri, and its identity at the scan without `DIGESTS`."""
    identity: Sequence[tuple[str, Any]] = sorted((row.trigger_identity or {}).items())
    return (row.trigger_uri, *((name, _hashable(value)) for name, value in identity if name != DIGESTS))


def _hashable(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else value
