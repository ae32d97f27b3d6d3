"""Chains of regions: what a region read from the table of another one, and what a rewind there means for it; pure.

Ids are used once, so an id of the upstream region says which rows were read: what a rewind withdrew comes again under
later ids. A row of a reading region notes, by start, the highest id that it read (`DIGESTS`), and the position of a
slice names the region, and the id up to which (inclusive) everything was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.protocol.history import RegionHistory, newest_read, target_before
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.triggers import DIGESTS, slices_of

KEEPS = "keeps"
"""In a slice: rewinds of the upstream region do not matter to its source (`on_change="ignore"`)."""

CHANGES = "changes"
"""In a slice: its source reads changes (`changes=True`), so rows that leave by a later id are read as deletes."""

IDS = "ids"
"""In a slice: the lowest and the highest id of the rows that it added, if rows of other ids cannot come in between."""

_RECENT = 256
"""The newest states in which the last rows of a start are looked for."""

_FROM, _TO = "from", "to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The region that made a table, as a region that reads it finds it.

    Attributes:
        region: `APP/START`.
        home: address of the tables of its home; "" if the reading region has its tables there, too.
        facts: reads its history; returns None if its checkpoint table is out of reach.
    """

    region: str
    home: str
    facts: Callable[[], RegionHistory | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a start of a region reads of another region's table, after its newest state.

    Attributes:
        source: the start.
        table: the id of the Delta table.
        version: the last version that was looked at.
        region, home: see `Upstream`; None in positions of an earlier Drainmark.
        through: the id up to which (inclusive) its rows were read; None if it is not known.
        keeps: see `KEEPS`.
        has_changes: see `CHANGES`.
    """

    source: str
    table: str
    version: int
    region: str | None = None
    home: str = ""
    through: int | None = None
    keeps: bool = False
    has_changes: bool = False


def readings_of(history: RegionHistory) -> tuple[Reading, ...]:
    """Return what each start of a region reads of tables: the newest state, or skip, has all positions."""
    newest = newest_read(history)
    found = slices_of((newest.trigger_identity if newest is not None else None) or {})
    return tuple(
        Reading(
            source=name,
            table=str(end["table"]),
            version=int(end["version"]),
            region=end.get("region"),
            home=end.get("home", ""),
            through=end.get("id"),
            keeps=bool(end.get(KEEPS)),
            has_changes=bool(end.get(CHANGES)),
        )
        for name, piece in found.items()
        if isinstance(end := piece[_TO], Mapping) and {"table", "version"} <= end.keys()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRead:
    """The ids, from first to last (inclusive), whose rows a slice took of a region's table."""

    source: str
    region: str
    home: str
    first: int
    last: int

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the answers of `trace`; `home` is null if it is the reader's."""
        ids = [self.first, self.last]
        return {"source": self.source, "region": self.region, "home": self.home or None, "ids": ids}


def reads_in(identity: Mapping[str, Any]) -> tuple[IdsRead, ...]:
    """Return what a trigger took of tables that regions made; nothing of positions of an earlier Drainmark."""
    return tuple(
        IdsRead(source=name, region=end["region"], home=end.get("home", ""), first=ids[0], last=ids[1])
        for name, piece in slices_of(identity).items()
        if isinstance(end := piece[_TO], Mapping) and "region" in end and (ids := piece.get(IDS)) is not None
    )


def pieces_read(history: RegionHistory, source: str, *, above: int = INITIAL_ID) -> Iterator[tuple[int, CheckpointRow]]:
    """Yield the states in force above an id, without skips, that took a slice of a start; oldest first."""
    for number, row in history.states.above(above).items():
        piece = slices_of(row.trigger_identity or {}).get(source)
        if number not in history.skips and piece is not None and piece[_TO] and piece[_FROM] != piece[_TO]:
            yield number, row


def _noted(row: CheckpointRow, source: str) -> int | None:
    """Return the highest id that a state read by a start, 0 for none; None if an earlier Drainmark did not note it."""
    found = ((row.trigger_identity or {}).get(DIGESTS) or {}).get(source)
    return int(found) if found is not None else None


def first_reading(
    history: RegionHistory,
    source: str,
    has_left: Callable[[int], bool],
    ask: Callable[[Mapping[str, Any]], int | None] = lambda piece: None,
) -> int | None:
    """Return the first state in force that read rows of another region which left; None if there is none.

    All states are looked at: a region in stages may publish rows of an earlier id after those of a later one. Earlier
    versions of Drainmark did not note what a state read. Of their states, only those are asked that come after the
    last one whose rows are all there: asking may read the log of the table.

    Args:
        source: the start that reads the table.
        has_left: says whether a rewind took the rows of an id.
        ask: returns the highest id that a slice, given as JSON, read; 0 for none, None if that cannot be found out.
    """
    wrong, has_right, without_note = None, False, list[tuple[int, Mapping[str, Any]]]()
    for number, row in pieces_read(history, source):
        noted = _noted(row, source)
        if noted is None:
            without_note.append((number, slices_of(row.trigger_identity or {})[source]))
        elif noted and has_left(noted):
            wrong = number
            break
        else:
            has_right |= noted > 0
    for number, piece in reversed(() if has_right else without_note):
        highest = ask(piece)
        if highest is None or (highest and has_left(highest)):
            wrong = number
        elif highest:
            break
    return wrong


def stays_of(history: RegionHistory, source: str, upstream: RegionHistory) -> int | None:
    """Return the id up to which the rows that a start read are in force; None if all of them are, as far as it knows.

    The newest rows decide: a rewind that took earlier ones took these, too.

    Args:
        upstream: the facts of the region whose table is read.
    """
    recent = RegionHistory(states=history.states.newest(_RECENT), skips=history.skips)
    noted = [_noted(row, source) for _, row in pieces_read(recent, source)]
    newest = next((number for number in reversed(noted) if number), None)
    if newest is None or newest in upstream.states:
        return None
    return upstream.states.ids.at_most(newest) or INITIAL_ID


# --- the plan of a chain ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A start of a region that reads a table of another one of the same home.

    Attributes:
        reader, source: the region and its start.
        upstream: the region that made the table.
        table: its id.
        has_changes: see `CHANGES`.
    """

    reader: str
    source: str
    upstream: str
    table: str = ""
    has_changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A region that goes back because a region above it does.

    Attributes:
        to: the id to go back to: the last state that read nothing of what leaves above it; None for a region that has
            gone back already, but not with all its tables: it died in between.
        because: the links by which it read rows that leave, by the id that stays the last one above.
        is_beyond: whether the last right state is out of reach, so that the region begins anew.
    """

    region: str
    to: int | None
    because: tuple[tuple[Link, int], ...]
    is_beyond: bool = False


def followers(
    region: str,
    to: int,
    *,
    links: Callable[[str], Sequence[Link]],
    history: Callable[[str], RegionHistory],
    horizon: Callable[[str], int],
) -> tuple[Follower, ...]:
    """Return the regions that go back with a region, those that nobody else reads first.

    A region may be reached on several ways (a diamond, a region that reads two others); it goes to the lowest id that
    any of them asks for, and asks the regions below it again for that.

    Args:
        links: returns the links whose upstream is a region.
        history, horizon: return the facts of a region, and how many ids back it can go.
    """
    found: dict[str, Follower] = {}
    targets, waiting = {region: to}, [region]
    while waiting:
        above = waiting.pop(0)
        stays = targets[above]
        for link in links(above):
            if link.reader == region:  # its states with rows that leave came after these rows: they leave as well
                continue
            facts = history(link.reader)
            wrong = first_reading(facts, link.source, lambda number, stays=stays: number > stays)  # type: ignore[misc]
            if wrong is None:
                if facts.rewinding and link.reader not in found:
                    found[link.reader] = Follower(region=link.reader, to=None, because=((link, stays),))
                continue
            wanted = target_before(facts, wrong, horizon(link.reader))
            before = found.get(link.reader)
            because = {each.source: (each, stay) for each, stay in (before.because if before is not None else ())}
            because[link.source] = (link, stays)
            lowest = min(wanted, targets.get(link.reader, wanted))
            found[link.reader] = Follower(
                region=link.reader,
                to=lowest,
                because=tuple(because.values()),
                is_beyond=wanted < (facts.state_at_most(wrong - 1) or INITIAL_ID)
                or (before is not None and before.is_beyond),
            )
            if lowest < targets.get(link.reader, lowest + 1):
                targets[link.reader] = lowest
                waiting.append(link.reader)
    return tuple(found[name] for name in _readers_first(region, found))


def _readers_first(region: str, found: Mapping[str, Follower]) -> list[str]:
    """Return the followers so that each one comes before the regions that it reads."""
    below: dict[str, list[str]] = {}
    for follower in found.values():
        for link, _ in follower.because:
            below.setdefault(link.upstream, []).append(follower.region)
    order: list[str] = []
    seen: set[str] = {region}

    def visit(name: str) -> None:
        for reader in below.get(name, ()):
            if reader not in seen:
                seen.add(reader)
                visit(reader)
                order.append(reader)

    visit(region)
    return order
