"""The controller's table is complete, closed, and the only way from state to state (E9–E16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.protocol.transitions import TABLE, Event, IllegalTransition, State, move

RUNNING = (State.DRAINING, State.CHECKPOINT_PENDING, State.PROCESSING, State.RESETTING)


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


@pytest.mark.parametrize("state", [state for state in State if state is not State.STARTED])
def test_every_state_finds_back_to_processing(state: State) -> None:
    assert State.PROCESSING in reached_from(state)


def test_nothing_leads_back_to_started() -> None:
    assert State.STARTED not in TABLE.values()


@pytest.mark.seed("E18")
def test_halted_is_left_only_when_an_operator_says_so() -> None:
    out = {event for event, after in leaves(State.HALTED).items() if after is not State.HALTED}
    assert out == {Event.RESUMED, Event.REWIND_ASKED}


@pytest.mark.parametrize("state", RUNNING)
@pytest.mark.seed("E11", "N4")
def test_lost_health_makes_a_running_region_unhealthy_and_a_reset_follows(state: State) -> None:
    assert move(state, Event.HEALTH_LOST) is State.UNHEALTHY
    assert move(State.UNHEALTHY, Event.HEALTH_RESTORED) is State.RESETTING


@pytest.mark.parametrize("state", [state for state in State if state not in (State.PROCESSING, State.STARTED)])
@pytest.mark.seed("E15", "X7")
def test_a_tick_outside_processing_is_ignored(state: State) -> None:
    assert move(state, Event.TRIGGERED) is state


@pytest.mark.seed("E14")
def test_only_a_committed_checkpoint_leads_from_work_in_flight_to_processing() -> None:
    for state in (State.DRAINING, State.CHECKPOINT_PENDING):
        assert [event for event, after in leaves(state).items() if after is State.PROCESSING] == [Event.CHECKPOINTED]


@pytest.mark.parametrize(
    ("state", "event"), [(s, e) for s in State for e in Event if (s, e) not in TABLE], ids=lambda value: value.name
)
def test_an_unlisted_move_raises_and_names_both(state: State, event: Event) -> None:
    with pytest.raises(IllegalTransition) as caught:
        move(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLE[State.STARTED, Event.FAILED] = State.HALTED  # type: ignore[index]


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
            assert (state, event) == (State.PROCESSING, Event.TRIGGERED)
        state = after
