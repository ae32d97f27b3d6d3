"""The fold of a checkpoint table's rows: epochs, ids, rewinds, attempts, published groups."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_rows import claim, group, published, rewind, row, skip
from history_model import STEPS, Model
from hypothesis import given
from hypothesis import strategies as st

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.protocol.failure_policy import attempts_after
from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import Image, Manifest
from drainmark.jobs.protocol.transitions import State, at_rest

HORIZON = 10_000


def fold(*rows: CheckpointRow | list[CheckpointRow]) -> RegionHistory:
    flat = [item for part in rows for item in (part if isinstance(part, list) else [part])]
    return RegionHistory.from_rows(flat)


def files(rows: Any) -> list[str]:
    return [row.trigger_uri for row in rows]


@pytest.mark.seed("V79", "V80")
def test_no_rows_are_the_initial_state() -> None:
    history = fold()
    assert (history.epoch, history.committed_id, history.next_id, history.attempts) == (0, 0, 1, 0)
    assert history.last_outcome is Outcome.NONE
    history.check_rewind(0, HORIZON)


@pytest.mark.seed("E16", "V81")
def test_ids_given_to_failed_attempts_rewinds_and_skips_are_gone_for_good() -> None:
    assert fold(claim(5, 1)).next_id == 5
    assert fold(claim(1, 1), group(7, [1, 2])).next_id == 9
    assert fold(claim(1, 1), group(1, [1]), rewind(2, 0)).next_id == 3
    assert fold(claim(1, 1), skip(4, 1)).next_id == 5
    assert fold(claim(9, 1), claim(3, 2, previous="crashed")).next_id == 9


def test_the_epoch_is_the_highest_ever_seen() -> None:
    assert fold(claim(1, 1), claim(1, 4), group(1, [1], epoch=4)).epoch == 4


def test_a_rewind_withdraws_what_is_above_and_keeps_what_is_below() -> None:
    history = fold(claim(1, 1), group(1, [1, 2, 3]), published(3), rewind(4, to=2))
    assert list(history.states) == [1, 2]
    assert files(history.withdrawn) == ["f3"]
    assert history.committed_id == 2
    assert history.rewinding


def test_a_rewind_of_a_rewind_withdraws_the_files_again_under_their_new_ids() -> None:
    history = fold(
        claim(1, 1), group(1, [1, 2, 3]), rewind(4, to=1), published(4), group(5, [2, 3]), rewind(7, to=1), published(7)
    )
    assert list(history.states) == [1]
    assert [(row.sequence_id, row.trigger_uri) for row in history.withdrawn] == [(5, "f2"), (6, "f3")]
    assert not history.rewinding


def test_withdrawn_files_come_back_in_input_order_whatever_their_ids() -> None:
    history = fold(claim(1, 1), group(1, [5]), group(2, [3]), group(3, [4]), rewind(4, to=0))
    assert files(history.withdrawn) == ["f3", "f4", "f5"]
    assert files(fold(claim(1, 1), group(1, [5]), group(2, [3])).triggers_above(0)) == ["f3", "f5"]


def test_a_file_processed_again_skipped_or_refused_is_withdrawn_no_more() -> None:
    start = [claim(1, 1), *group(1, [1, 2, 3]), rewind(4, to=0)]
    assert files(fold(start, group(5, [1])).withdrawn) == ["f2", "f3"]
    assert files(fold(start, skip(5, 2)).withdrawn) == ["f1", "f3"]
    refused = row(RowKind.REFUSED, 0, trigger_uri="f3", trigger_identity={"size": 3, "mtime_ns": 1}, reason="gone")
    history = fold(start, refused)
    assert files(history.withdrawn) == ["f1", "f2"]
    assert history.refused == (refused,)


def test_a_skip_is_committed_but_no_target() -> None:
    history = fold(claim(1, 1), group(1, [1]), skip(2, 2), group(3, [3]))
    assert history.committed_id == 3
    with pytest.raises(RewindRefused) as caught:
        history.check_rewind(2, HORIZON)
    assert caught.value.facts["nearest"] in (1, 3)


@pytest.mark.parametrize(
    ("to", "nearest"), [(2, (1,)), (3, (1, 5)), (4, (5,)), (6, (5,)), (99, (5,)), (-1, (0,))], ids=str
)
@pytest.mark.seed("H4")
def test_an_id_that_is_not_in_force_is_refused_with_the_nearest(to: int, nearest: tuple[int, ...]) -> None:
    history = fold(claim(1, 1), group(1, [1, 2, 3]), rewind(4, to=1), group(5, [2]))
    with pytest.raises(RewindRefused) as caught:
        history.check_rewind(to, HORIZON)
    assert caught.value.facts["nearest"] in nearest
    assert str(caught.value.facts["nearest"]) in (caught.value.remedy or "")


@pytest.mark.parametrize("to", [0, 1, 5])
def test_ids_in_force_and_the_initial_state_are_targets(to: int) -> None:
    fold(claim(1, 1), group(1, [1, 2, 3]), rewind(4, to=1), group(5, [2])).check_rewind(to, HORIZON)


def test_the_horizon_bounds_a_rewind_and_the_nearest_is_within_it() -> None:
    history = fold(claim(1, 1), group(1, list(range(1, 21))))
    history.check_rewind(15, horizon=5)
    history.check_rewind(0, horizon=5)
    for to in (1, 3, 14):
        with pytest.raises(RewindRefused) as caught:
            history.check_rewind(to, horizon=5)
        assert caught.value.facts["nearest"] == 15


@given(st.sets(st.integers(1, 12)), st.sets(st.integers(1, 12)), st.integers(0, 14), st.integers(1, 14))
def test_a_nearest_id_is_itself_allowed(states: set[int], skips: set[int], to: int, horizon: int) -> None:
    rows = [skip(n, n) if n in skips else group(n, [n])[0] for n in sorted(states | skips)]
    history = fold(claim(1, 1), rows)
    try:
        history.check_rewind(to, horizon)
    except RewindRefused as error:
        history.check_rewind(error.facts["nearest"], horizon)


@pytest.mark.seed("E14", "X10")
def test_unclean_claims_count_until_a_state_is_committed_not_until_a_reset_is_done() -> None:
    crashed = [claim(1, 1), claim(1, 2, previous="crashed"), published(0, 2), claim(1, 3, previous="failed")]
    assert fold(crashed).attempts == 2
    assert fold(crashed, published(0, 3)).attempts == 2
    assert fold(crashed, group(1, [1], epoch=3)).attempts == 0
    assert fold(crashed, claim(1, 4, previous="clean"), claim(1, 5, previous="interrupted")).attempts == 2


@pytest.mark.seed("E14", "AU1")
def test_attempts_are_those_of_one_code() -> None:
    one, two = {"code": "one"}, {"code": "two"}
    failing = [claim(1, 1, **one), claim(1, 2, previous="failed", **one), claim(1, 3, previous="crashed", **one)]
    assert fold(failing).attempts == 2
    changed = fold(failing, claim(1, 4, previous="failed", **two))
    assert (changed.attempts, changed.code) == (0, "two")
    assert attempts_after(fold(failing), Outcome.FAILED, "two") == 0
    assert attempts_after(fold(failing), Outcome.FAILED, "one") == 3
    assert fold(failing, claim(1, 4, previous="failed")).attempts == 3, "a verb's claim has no code"
    assert fold(claim(1, 1), claim(1, 2, previous="failed", **one)).attempts == 1, "rows of before say none"


@pytest.mark.seed("V106")
def test_a_halt_that_an_operator_asked_for_stays_across_rewinds_until_resumed() -> None:
    asked = row(RowKind.HALT, 1, epoch=2, reason="bad prices", asked=True)
    rows = [claim(1, 1), *group(1, [1]), claim(2, 2, previous="failed"), asked, claim(2, 3), rewind(2, to=0, epoch=3)]
    under_way = fold(rows)
    assert (under_way.halt, under_way.attempts) == (asked, 0)
    assert at_rest(under_way) is State.UNHEALTHY, "its tables are not all done"
    done = fold(rows, published(2, epoch=3, outcome="clean"))
    assert (done.halt, at_rest(done)) == (asked, State.HALTED)
    later = fold(rows, claim(3, 4, previous="crashed"), row(RowKind.HALT, 0, epoch=4, reason="damaged"))
    assert at_rest(later) is State.HALTED, "a halt after the rewind"
    assert fold(rows, row(RowKind.RESUME, 0, epoch=4, reason="mended")).halt is None


@pytest.mark.seed("E18")
def test_a_halt_by_failures_is_in_force_until_resumed_or_rewound() -> None:
    halted = [claim(1, 1), *group(1, [1]), claim(2, 2, previous="failed"), row(RowKind.HALT, 1, epoch=2, reason="bad")]
    history = fold(halted)
    assert history.halt is not None
    assert history.attempts == 1
    for relief in (row(RowKind.RESUME, 1, epoch=3, reason="mended"), rewind(2, to=0, epoch=3)):
        after = fold(halted, claim(2, 3, previous="clean"), relief)
        assert after.halt is None
        assert after.attempts == 0
    assert fold(halted, claim(2, 3, previous="clean")).halt is not None


def test_an_owner_without_a_last_word_has_crashed() -> None:
    assert fold(claim(1, 1)).last_outcome is Outcome.CRASHED
    for outcome in (Outcome.CLEAN, Outcome.INTERRUPTED, Outcome.FAILED):
        assert fold(claim(1, 1), published(0, outcome=outcome.value)).last_outcome is outcome


def test_the_last_error_lives_until_the_next_state() -> None:
    error = {"id": "OPERATOR_FAILED", "message": "no"}
    history = fold(claim(1, 1), published(0, outcome="failed", error=error))
    assert history.last_error == error
    assert history.with_rows(group(1, [1])).last_error is None


def test_the_error_of_a_skipped_file_is_over_and_that_of_another_one_is_not() -> None:
    error = {"id": "OPERATOR_FAILED", "message": "no", "trigger": "f2"}
    history = fold(claim(1, 1), published(0, outcome="failed", error=error), claim(1, 2))
    assert history.with_rows([skip(1, 1, epoch=2)]).last_error == error
    assert history.with_rows([skip(1, 2, epoch=2)]).last_error is None


def test_what_is_committed_is_unpublished_until_a_note_covers_it() -> None:
    rows = [claim(1, 1), *group(1, [1, 2]), *group(3, [3])]
    assert [row.sequence_id for row in fold(rows).unpublished] == [2, 3]
    assert [row.sequence_id for row in fold(rows, published(2)).unpublished] == [3]
    assert fold(rows, published(3)).unpublished == ()


def test_a_group_cut_by_a_rewind_leaves_nothing_to_publish_of_its_own() -> None:
    history = fold(claim(1, 1), group(1, [1, 2, 3]), published(3), rewind(4, to=2))
    assert [(row.kind, row.sequence_id) for row in history.unpublished] == [(RowKind.REWIND, 4)]
    assert history.with_rows([published(4)]).unpublished == ()


def test_versions_are_those_of_the_newest_note_of_each_table() -> None:
    notes = [published(1, versions={"a": 1, "b": 1}), published(2, versions={"a": 2})]
    assert fold(claim(1, 1), notes).versions == {"a": 2, "b": 1}


def test_the_image_is_the_newest_that_no_rewind_withdrew() -> None:
    def with_image(first: int, file: int) -> list[CheckpointRow]:
        image = Image(table="s", at=first, files=())
        return group(first, [file], manifest=Manifest(files={}, images=(image,)).to_json())

    rows = [claim(1, 1), *with_image(1, 1), *group(2, [2]), *with_image(3, 3)]
    assert fold(rows).image_of("s") == Image(table="s", at=3, files=())
    assert fold(rows, rewind(4, to=2)).image_of("s") == Image(table="s", at=1, files=())
    assert fold(rows, rewind(4, to=0)).image_of("s") is None
    assert fold(rows).image_of("other") is None


# --- any history --------------------------------------------------------------------------------------------------


@given(STEPS, st.integers(0, 60))
def test_any_history_folds_to_the_facts_whole_or_in_two_parts(steps: list[tuple[str, int]], cut: int) -> None:
    model = Model()
    model.claim(0)
    for verb, number in steps:
        getattr(model, verb)(number)
    history = RegionHistory.from_rows(model.rows)
    assert {number: row.trigger_order for number, row in history.states.items()} == model.states
    assert {row.trigger_order for row in history.withdrawn} == model.withdrawn
    assert (history.next_id, history.epoch, history.attempts) == (model.next_id, model.epoch, model.attempts)
    assert (history.halt is not None) == bool(model.halted)
    assert history.last_outcome.value == model.outcome
    assert list(history.states) == sorted(history.states)
    assert history == RegionHistory.from_rows(model.rows[:cut]).with_rows(model.rows[cut:])
    given_away = [row.sequence_id for row in model.rows if row.kind in (RowKind.STATE, RowKind.REWIND)]
    assert len(given_away) == len(set(given_away))
