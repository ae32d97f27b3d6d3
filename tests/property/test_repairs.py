"""A repaired table has each row of the ids in force once, and no others, wherever the rows are left; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.repairs import CopiedRows, TableDamage, TableRepair, repair_of_rows


@dataclass(frozen=True)
class Harmed:
    """A table that others harmed.

    Attributes:
        rows: number of rows by path and id, of every file that was ever written.
        wanted: number of rows by id that the table must have.
        named: files that checkpoint rows name.
        there: paths of files that exist.
        restored: rows that come back with a rewind.
    """

    rows: Mapping[str, Counter[int]]
    wanted: Mapping[int, int]
    named: Sequence[StagedFile]
    damage: TableDamage
    there: Collection[str]
    restored: Sequence[CopiedRows]

    def repair(self) -> TableRepair:
        return repair_of_rows(
            "lake/kept",
            self.damage,
            self.named,
            shown=sum((self.rows[file.path] for file in self.damage.sound), Counter()),
            ids=self.wanted,
            edge=0,
            restored=self.restored,
            is_there=lambda file: file.path in self.there,
        )

    def shown_after(self, repair: TableRepair) -> Counter[int]:
        live = {path for path in self.damage.live if path not in repair.removed} | {file.path for file in repair.added}
        found = sum((self.rows[path] for path in live), Counter())
        for part in repair.copied:
            for file in part.files:
                found.update({number: n for number, n in self.rows[file.path].items() if number in part.ids})
        return found


def file_of(path: str, rows: Counter[int]) -> StagedFile:
    held = [number for number, n in rows.items() if n] or [0]
    return StagedFile(path=path, size=1, rows=rows.total(), first_id=min(held), last_id=max(held))


def cut(draw: some.DrawFn, ids: Sequence[int]) -> list[Sequence[int]]:
    """Cut ids that follow each other into runs."""
    runs = []
    while ids:
        length = draw(some.integers(1, len(ids)))
        runs.append(ids[:length])
        ids = ids[length:]
    return runs


@some.composite
def harmed(draw: some.DrawFn) -> Harmed:
    """Groups of ids in a file each, joined by a compaction, withdrawn and replaced in part; then files or ids are gone.

    With a log that tells what the table showed, files of that time are gone. Another copy lacks the newest of its files
    and shows ids that are not in force. Rows that a rewind restores are in files of their own, or back in the table.
    """
    counts = Counter({number: draw(some.integers(0, 2)) for number in range(1, draw(some.integers(2, 9)))})
    ids = sorted(counts)
    rows: dict[str, Counter[int]] = {}
    for place, run in enumerate(cut(draw, ids)):
        rows[f"named/{place}"] = Counter({number: counts[number] for number in run if counts[number]})
    named = [file_of(path, held) for path, held in rows.items()]
    in_force = [number for number in ids if draw(some.integers(0, 4))]
    restored = [number for number in in_force if not draw(some.integers(0, 4))]
    is_back = draw(some.booleans())
    unknown = [] if draw(some.booleans()) else [number for number in ids if number not in in_force]
    shown = sorted({*in_force, *unknown} - set(() if is_back else restored))
    before: list[StagedFile] = []
    for place, run in enumerate(cut(draw, shown)):
        held = Counter({number: counts[number] for number in run if counts[number]})
        if held:
            rows[f"joined/{place}"] = held
            before.append(file_of(f"joined/{place}", held))
    is_traced = draw(some.booleans())
    left = [file for file in before if draw(some.booleans())]
    if not is_traced:  # an id that is shown is shown whole, and a copy shows the files of its time
        left = before[: draw(some.integers(0, len(before)))]
    parts = []
    if restored:
        rows["restored"] = Counter({number: counts[number] for number in restored if counts[number]})
        parts = [CopiedRows(ids=tuple(restored), files=(file_of("restored", rows["restored"]),))]
    damage = TableDamage(
        version=9,
        txn_version=9,
        live={"strange": 1} | {file.path: 1 for file in left if draw(some.booleans())},
        sound=tuple(left),
        gone=tuple(file for file in before if file not in left) if is_traced else (),
        is_traced=is_traced,
    )
    rows["strange"] = Counter({1: 1})
    there = {file.path for file in named if draw(some.integers(0, 2))}
    return Harmed(rows, {number: counts[number] for number in in_force}, named, damage, there, parts)


@pytest.mark.seed("RT1")
@given(harmed())
def test_every_row_that_is_left_is_shown_once_and_no_other(case: Harmed) -> None:
    repair = case.repair()
    found = case.shown_after(repair)
    kept = {number: n for number, n in case.wanted.items() if number not in repair.lost}
    assert {number: found[number] for number in kept} == kept
    assert {number for number in found if number not in case.wanted} == set()
    gone = {file.path for file in case.named} - set(case.there)
    for number in repair.lost:
        assert any(case.rows[path][number] or file_holds(case, path, number) for path in gone)


def file_holds(case: Harmed, path: str, number: int) -> bool:
    return next(file for file in case.named if file.path == path).may_hold((number,))
