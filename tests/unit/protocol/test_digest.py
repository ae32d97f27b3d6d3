"""A history that starts from a digest answers like one that is folded from the first row (H27, H30)."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from checkpoint_rows import claim, group, input_of, published, rewind, row, skip
from history_model import STEPS, rows_of
from hypothesis import given
from hypothesis import strategies as st

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.protocol.digest import digest_of, history_from
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.id_runs import IdRows, Ids
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, PLAIN_FORMAT, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole

TABLE = "state/app/words"


@dataclasses.dataclass
class Listed:
    """An archive of rows in a list, which counts the requests for ranges of states."""

    rows: list[CheckpointRow]
    asked: int = 0

    def states(self, first: int, last: int) -> list[CheckpointRow]:
        self.asked += 1
        times = [row.detail.get("commit_seconds", {}) for row in self.rows if row.kind is RowKind.PUBLISHED]
        seconds = {int(number): value for each in times for number, value in each.items()}
        found = [row for row in self._states() if first <= row.sequence_id <= last]
        return [
            dataclasses.replace(row, checkpoint_seconds=seconds.get(row.group_last or 0))
            if row.kind is RowKind.STATE else row
            for row in found
        ]  # fmt: skip

    def states_of(self, uris: Collection[str]) -> list[CheckpointRow]:
        return [row for row in self._states() if row.trigger_uri in uris]

    def refusals(self) -> list[CheckpointRow]:
        return [row for row in self.rows if row.kind is RowKind.REFUSED]

    def _states(self) -> Iterator[CheckpointRow]:
        return (row for row in self.rows if row.kind in (RowKind.STATE, RowKind.SKIP, RowKind.PROGRESS))


def digested(rows: list[CheckpointRow], archive: Listed | None = None) -> RegionHistory:
    found = history_from(digest_of(RegionHistory.from_rows(rows)), archive or Listed(rows))
    assert found is not None
    return found


def between_commits(rows: list[CheckpointRow], place: int) -> int:
    """Return the last place up to `place` that is not inside a group's commit, since no digest ends inside one."""
    place = min(place, len(rows))
    while place and rows[place - 1].kind is RowKind.STATE and rows[place - 1].sequence_id != rows[place - 1].group_last:
        place -= 1
    return place


def nearest(history: RegionHistory, to: int, horizon: int) -> object:
    try:
        history.check_rewind(to, horizon)
    except RewindRefused as refused:
        return refused.facts["nearest"]
    return "allowed"


def answers(history: RegionHistory, top: int) -> dict[str, Any]:
    """Return a history's answers to all its questions."""
    return {
        "states": dict(history.states),
        "one by one": [history.states[number] for number in history.states],
        "newest": dict(history.states.newest(3)),
        "withdrawn": history.withdrawn,
        "refused": history.refused,
        "images": [history.image_of(TABLE, at) for at in (None, *range(top))],
        "by uri": history.newest_by_uri(),
        "some by uri": history.newest_by_uri({"f1", "f4"}),
        "above": [history.triggers_above(number) for number in range(top)],
        "targets": [nearest(history, to, horizon) for to in range(-1, top) for horizon in (0, 2, 100)],
        "ids": (history.epoch, history.next_id, history.committed_id, history.published_id, history.rewinding),
        "rows": (history.halt, history.last_claim, history.unpublished, history.last_error, history.versions),
        "counts": (history.attempts, history.last_outcome, history.totals, history.rewinds),
    }


@given(STEPS, st.integers(0, 60), st.integers(0, 60))
def test_it_answers_as_the_fold_of_all_rows_does(steps: list[tuple[str, int]], first: int, second: int) -> None:
    model = rows_of(steps)
    rows = model.rows
    cut, later = sorted((between_commits(rows, first), between_commits(rows, second)))
    whole = RegionHistory.from_rows(rows)
    once = digested(rows[:cut]).with_rows(rows[cut:later])
    again = history_from(digest_of(once), Listed(rows[:later]))
    assert again is not None
    for history in (once.with_rows(rows[later:]), again.with_rows(rows[later:])):
        assert answers(history, model.next_id + 1) == answers(whole, model.next_id + 1)
        assert digest_of(history) == digest_of(whole)
    assert {row.trigger_order for row in whole.withdrawn} == model.withdrawn
    assert {number: row.trigger_order for number, row in whole.states.items()} == model.states


@given(STEPS, st.integers(0, 14), st.integers(0, 14))
def test_targets_are_those_of_a_look_at_every_state(steps: list[tuple[str, int]], to: int, horizon: int) -> None:
    history = RegionHistory.from_rows(rows_of(steps).rows)
    oldest = max(0, history.committed_id - horizon)
    allowed = [0, *(n for n, row in history.states.items() if row.kind is RowKind.STATE and n >= oldest)]
    near = min((n for n in allowed if n >= oldest), key=lambda n: abs(n - to), default=0)
    assert nearest(history, to, horizon) == ("allowed" if to in allowed else near)


@given(st.sets(st.integers(1, 30)), st.integers(0, 31), st.integers(0, 31))
def test_ids_are_a_sorted_set(numbers: set[int], cut: int, count: int) -> None:
    ids = Ids()
    for number in sorted(numbers):
        ids = ids.with_id(number)
    assert list(ids) == sorted(numbers)
    assert (len(ids), cut in ids) == (len(numbers), cut in numbers)
    assert list(ids.up_to(cut)) == [n for n in sorted(numbers) if n <= cut]
    assert list(ids.above(cut)) == [n for n in sorted(numbers) if n > cut]
    assert ids.at_most(cut) == max((n for n in numbers if n <= cut), default=None)
    assert ids.at_least(cut) == min((n for n in numbers if n >= cut), default=None)
    assert ids.from_end(count) == (sorted(numbers)[-count:][0] if count and numbers else None)


def test_two_histories_that_go_on_from_one_do_not_mix() -> None:
    start = RegionHistory.from_rows([claim(1, 1), *group(1, [1]), *group(4, [2])])
    one, other = start.with_rows(group(6, [3])), start.with_rows(group(6, [9]))
    assert [row.trigger_uri for row in one.states.values()] == ["f1", "f2", "f3"]
    assert [row.trigger_uri for row in other.states.values()] == ["f1", "f2", "f9"]
    assert list(start.states) == [1, 4]
    back = start.with_rows([rewind(6, 0)])
    assert [row.trigger_uri for row in back.with_rows(group(7, [1])).withdrawn] == ["f2"]
    assert [row.trigger_uri for row in back.with_rows(group(7, [2])).withdrawn] == ["f1"]
    assert [row.trigger_uri for row in back.withdrawn] == ["f1", "f2"]


def test_old_rows_are_read_only_when_somebody_asks_for_them() -> None:
    rows = [claim(1, 1)]
    for number in range(1, 2001):
        rows += [*group(number, [number]), published(number, commit_seconds={str(number): 0.5})]
    archive = Listed(rows)
    history = digested(rows, archive).with_rows([*group(2001, [2001]), published(2001)])
    assert (history.committed_id, history.published_id, len(history.states)) == (2001, 2001, 2001)
    assert 17 in history.states
    assert history.states[2001].trigger_uri == "f2001"
    history.check_rewind(1990, 100)
    assert history.state_at_least(5) == 5
    assert archive.asked == 0
    assert [history.states[number].checkpoint_seconds for number in (700, 701, 702)] == [0.5] * 3
    assert archive.asked == 1, "neighbours are read together"
    for number in history.states:
        assert history.states[number].sequence_id == number
    assert len(history.states.rows._chunks) <= 4, "and few of them are kept"


def test_what_a_commit_took_is_known_although_its_note_came_after_the_digest() -> None:
    rows = [claim(1, 1), *group(1, [1, 2, 3])]
    history = digested(rows).with_rows([published(3, commit_seconds={"3": 0.5})])
    assert [row.checkpoint_seconds for row in history.states.values()] == [0.5] * 3
    assert history.states[2].checkpoint_seconds == 0.5


@pytest.mark.seed("H29")
def test_no_rewind_goes_behind_dropped_changes_but_to_the_beginning() -> None:
    rows = [claim(1, 1), *group(1, [1, 2, 3, 4, 5]), published(5, dropped={TABLE: 3})]
    for history in (RegionHistory.from_rows(rows), digested(rows)):
        assert [nearest(history, to, 100) for to in range(6)] == ["allowed", 3, 3, "allowed", "allowed", "allowed"]
        assert history.oldest_target(100) == 3
        assert history.with_rows([rewind(6, 0)]).dropped == {}
        assert history.with_rows([rewind(6, 4)]).dropped == {TABLE: 3}


@pytest.mark.seed("V147")
def test_no_rewind_goes_behind_a_history_that_was_cut_but_to_the_beginning() -> None:
    rows = [claim(1, 1), *group(1, [1, 2, 3, 4, 5]), published(5, dropped={TABLE: 2}, trimmed={"state/app/files": 3})]
    for history in (RegionHistory.from_rows(rows), digested(rows)):
        assert [nearest(history, to, 100) for to in range(6)] == ["allowed", 3, 3, "allowed", "allowed", "allowed"]
        assert history.with_rows([rewind(6, 0)]).trimmed == {}
        assert history.with_rows([rewind(6, 4)]).trimmed == {"state/app/files": 3}


def test_a_digest_of_a_newer_version_is_passed_over() -> None:
    text = digest_of(RegionHistory.from_rows([claim(1, 1), skip(1, 1)]))
    assert history_from(text.replace('"version": 1', '"version": 99'), Listed([])) is None
    newer = text.replace(f'"format": {PLAIN_FORMAT}', f'"format": {FORMAT_VERSION + 1}')
    assert history_from(newer, Listed([])) is None


def test_how_far_a_rewind_goes_is_known_from_a_digest_too() -> None:
    rows = [claim(1, 1, rewind_horizon=1), *group(1, [1]), *group(2, [2]), *group(3, [3]), claim(4, 2)]
    found = history_from(digest_of(RegionHistory.from_rows(rows)), Listed(rows))
    assert found is not None
    assert [target_before(found, number) for number in (2, 3, 4)] == [0, 2, 3]
    assert target_before(found, 2, 9) == 1


def test_refused_files_are_found_before_and_after_the_digest() -> None:
    refused = [row(RowKind.REFUSED, 0, reason="gone", **input_of(file)) for file in (1, 2)]
    assert digested(refused[:1]).with_rows(refused[1:]).refused == tuple(refused)


def test_epochs_without_a_claim_are_those_of_a_history_that_was_lost() -> None:
    """The claims 2 to 4 were in a newer checkpoint table, which an older copy replaced."""
    rows = [claim(1, 1), *group(1, [1]), claim(2, 5), claim(3, 6), claim(4, 9)]
    assert RegionHistory.from_rows(rows).lost_epochs == ((2, 4), (7, 8))
    assert digested(rows[:3]).with_rows(rows[3:]).lost_epochs == ((2, 4), (7, 8))


@pytest.mark.seed("H30")
def test_threads_of_stages_ask_for_archived_rows_beside_each_other() -> None:
    """Another thread asks for so many other rows that the chunk just read is dropped before this thread uses it."""
    numbers = [256 * place + 1 for place in range(6)]  # each row is read in a chunk with its neighbours
    rows = IdRows(archive=Listed([row for n in numbers for row in group(n, [n])]), archived=numbers[-1])
    others: list[threading.Thread] = []

    class Interrupted(OrderedDict[int, dict[int, CheckpointRow]]):
        def move_to_end(self, key: int, last: bool = True) -> None:
            if not others:
                others.append(threading.Thread(target=lambda: [rows.get(number) for number in numbers[1:]]))
                others[0].start()
                others[0].join(0.5)  # it may have to wait for this thread
            super().move_to_end(key, last)

    rows._chunks = Interrupted()
    assert rows.get(1).sequence_id == 1
    others[0].join()
    assert len(rows._chunks) == 4


@pytest.mark.seed("H27")
def test_a_digest_that_does_not_say_when_a_table_left_has_it_lack_everything() -> None:
    """Digests from before 0.4 name former tables alone; a state that comes back must not seem whole."""
    one, other = (
        RegionTable(name=name, role=TableRole.CHANGES, operator=name, schema_json="{}").to_json()
        for name in (TABLE, "state/app/others")
    )
    rows = [claim(1, 1, tables=[one]), *group(1, [1, 2]), claim(3, 2, tables=[other], operators=["others"])]
    text = digest_of(RegionHistory.from_rows(rows))
    old = {name: value for name, value in json.loads(text).items() if name != "left"}
    found = history_from(json.dumps(old), Listed(rows))
    assert found is not None
    assert [each.name for each in found.former] == [TABLE]
    assert found.left == {TABLE: 0}
