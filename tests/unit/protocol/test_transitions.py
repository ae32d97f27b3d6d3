"""The controller's table is complete, closed, and the only source of changes of state (E9–E16)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.transitions import IN_HAND, TABLE, Event, IllegalTransition, State, at_rest, move, state_of

RUNNING = (*sorted(IN_HAND), State.STARTED, State.RESETTING)


def leaves(state: State) -> dict[Event, State]:
    return {event: after for (before, event), after in TABLE.items() if before is state}


def reached_from(start: State) -> set[State]:
    found, open_ = {start}, [start]
    while open_:
        for after in leaves(open_.pop()).values():
            if after not in found:
                found.add(after)
                open_.append(after)
    return found


@pytest.mark.seed("E9")
def test_every_state_is_reached_from_started() -> None:
    assert reached_from(State.STARTED) == set(State)


def test_every_event_is_listed_somewhere() -> None:
    assert {event for _, event in TABLE} == set(Event)


@pytest.mark.parametrize("state", list(State))
def test_every_state_finds_back_to_work_and_to_rest(state: State) -> None:
    assert {State.PROCESSING, State.STARTED} <= reached_from(state)


@pytest.mark.seed("E18")
def test_halted_is_left_only_when_an_operator_says_so() -> None:
    out = {event for event, after in leaves(State.HALTED).items() if after is not State.HALTED}
    assert out == {Event.RESUMED, Event.REWIND_ASKED}


@pytest.mark.parametrize("state", RUNNING)
@pytest.mark.seed("E11", "N4", "AU3")
def test_lost_health_makes_a_region_unhealthy_and_the_next_claim_resets_it(state: State) -> None:
    assert move(state, Event.HEALTH_LOST) is State.UNHEALTHY
    assert move(State.UNHEALTHY, Event.CLAIMED_UNCLEAN) is State.RESETTING


@pytest.mark.seed("E15", "X7", "AU3")
def test_nothing_is_taken_in_hand_but_by_a_region_that_is_in_order() -> None:
    taking = {state for state in State if Event.TRIGGERED in leaves(state)}
    assert taking == {State.STARTED, State.DRAINING}
    assert {state for state in State if State.PROCESSING in leaves(state).values()} == taking


@pytest.mark.seed("E14")
def test_only_a_committed_checkpoint_an_interruption_or_a_reset_leads_from_work_in_hand_to_rest() -> None:
    for state in IN_HAND:
        ways = {event for event, after in leaves(state).items() if after is State.STARTED}
        assert ways <= {Event.CHECKPOINTED, Event.RELEASED}
    assert Event.CHECKPOINTED not in leaves(State.PROCESSING)


@pytest.mark.parametrize(
    ("state", "event"), [(s, e) for s in State for e in Event if (s, e) not in TABLE], ids=lambda value: value.name
)
@pytest.mark.seed("AU3")
def test_an_unlisted_move_raises_and_names_both(state: State, event: Event) -> None:
    with pytest.raises(IllegalTransition) as caught:
        move(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLE[State.STARTED, Event.CHECKPOINTED] = State.HALTED  # type: ignore[index]


@given(st.lists(st.sampled_from(list(Event)), max_size=60))
def test_any_walk_stays_in_the_table_and_halts_only_for_a_reason(events: list[Event]) -> None:
    state = State.STARTED
    for event in events:
        try:
            after = move(state, event)
        except IllegalTransition:
            assert (state, event) not in TABLE
            continue
        if after is State.HALTED and state is not State.HALTED:
            assert event in (Event.ATTEMPTS_EXHAUSTED, Event.HALT_ASKED)
        if state is State.HALTED and after is not State.HALTED:
            assert event in (Event.RESUMED, Event.REWIND_ASKED)
        if after is State.DRAINING and state is not State.DRAINING:
            assert (state, event) == (State.PROCESSING, Event.DRAIN_BEGUN)
        state = after


# --- the state of a region ----------------------------------------------------------------------------------------


def row(kind: RowKind, **detail: Any) -> CheckpointRow:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return CheckpointRow(
        kind=kind, epoch=1, sequence_id=1, attempt="a", recorded_at=at, region="app/start", run_id="run",
        drainmark_version="1", graph_fingerprint="", params_hash="", detail=detail,
    )  # fmt: skip


def history(outcome: Outcome, *, is_halted: bool = False, is_rewinding: bool = False) -> RegionHistory:
    rewind = (row(RowKind.REWIND, to=0),) if is_rewinding else ()
    return RegionHistory(last_outcome=outcome, halt=row(RowKind.HALT) if is_halted else None, unpublished=rewind)


@pytest.mark.seed("AU3", "E9")
@pytest.mark.parametrize("told", [None, "", *State])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_region_that_nobody_owns_is_in_order_or_unhealthy_whatever_was_told(
    told: str | None, outcome: Outcome
) -> None:
    """`told` is the state that the last owner, of any version, reported; it may be older than that owner's last row."""
    rest = State.UNHEALTHY if outcome in UNCLEAN else State.STARTED
    assert state_of(history(outcome), told, is_owned=False) is at_rest(history(outcome)) is rest
    assert state_of(history(outcome, is_rewinding=True), told, is_owned=False) is State.UNHEALTHY
    assert state_of(history(outcome, is_halted=True), told, is_owned=False) is State.HALTED


@pytest.mark.seed("AU3", "E9")
@pytest.mark.parametrize("told", list(State))
def test_of_a_region_with_an_owner_its_own_word_counts(told: State) -> None:
    assert state_of(history(Outcome.CRASHED), told, is_owned=True) is told, "it has not ended yet"
    assert state_of(history(Outcome.CRASHED, is_halted=True), told, is_owned=True) is State.HALTED
