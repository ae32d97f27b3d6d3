"""The decisions after a claim and after a failure (E14, E18, H31)."""

from __future__ import annotations

import pytest
from checkpoint_rows import claim, group, published, row
from hypothesis import given
from hypothesis import strategies as st

from drainmark.jobs.errors import DrainmarkError, Retry, SparkLost
from drainmark.jobs.errors.environment import EnvironmentFailed, FilesLost, WorkerDied
from drainmark.jobs.protocol.failure_policy import (
    EndRun,
    GroupSize,
    Halt,
    Leave,
    Proceed,
    SplitGroup,
    Stop,
    after_claim,
    after_failure,
    attempts_after,
    before_claim,
    is_lifted,
)
from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_an_unclean_end_costs_an_attempt(outcome: Outcome) -> None:
    assert attempts_after(RegionHistory(attempts=2), outcome) == (3 if outcome in UNCLEAN else 2)


def test_a_clean_owner_starts_with_full_groups_and_one_after_a_failure_with_one() -> None:
    assert after_claim(RegionHistory(), max_attempts=5, max_group=100) == Proceed(100)
    assert after_claim(RegionHistory(attempts=1), max_attempts=5, max_group=100) == Proceed(1)


def test_an_owner_after_one_that_was_killed_goes_on_with_the_size_that_groups_had() -> None:
    groups = [*group(1, [*range(1, 65)]), *group(65, [65, 66])]
    killed = RegionHistory.from_rows([claim(1, 1), *groups, claim(67, 2, previous="crashed")])
    assert after_claim(killed, max_attempts=5, max_group=100) == Proceed(64), "the last group had only two left"
    assert after_claim(killed, max_attempts=5, max_group=10) == Proceed(10)
    assert after_claim(killed, max_attempts=1, max_group=100) == Proceed(1), "it is the last attempt"
    again = killed.with_rows([claim(67, 3, previous="crashed")])
    assert after_claim(again, max_attempts=5, max_group=100) == Proceed(1), "an input may be what kills"
    grown = [*group(67, [67], epoch=3), *group(68, [68, 69], epoch=3), *group(70, [*range(70, 74)], epoch=3)]
    later = again.with_rows([*grown, claim(74, 4, previous="crashed")])
    assert after_claim(later, max_attempts=5, max_group=100) == Proceed(4), "doubling goes on where it was"


def test_files_of_an_attempt_that_are_lost_split_no_group_however_often() -> None:
    assert after_failure(FilesLost.retry, group_size=100, attempts=0, max_attempts=5) == EndRun()
    lost = {"id": FilesLost.id, "message": "tasks wrote 5 rows, and this process does not find them"}
    history = RegionHistory.from_rows([claim(1, n, previous="failed", error=lost) for n in range(1, 6)])
    assert after_claim(history, max_attempts=5, max_group=100) == Proceed(100)
    assert isinstance(after_claim(history, max_attempts=4, max_group=100), Halt)


@pytest.mark.seed("DX3")
@pytest.mark.parametrize("kind", [EnvironmentFailed, WorkerDied, SparkLost])
def test_a_group_that_the_environment_failed_is_whole_again_once(kind: type[DrainmarkError]) -> None:
    error = {"id": kind.id, "message": "an executor was lost"}
    history = RegionHistory.from_rows([claim(1, 1), claim(1, 2, previous="failed", error=error)])
    assert after_claim(history, max_attempts=5, max_group=100) == Proceed(100)
    history = history.with_rows([claim(1, 3, previous="failed", error=error)])
    assert after_claim(history, max_attempts=5, max_group=100) == Proceed(1), "an input may be what kills executors"
    history = RegionHistory.from_rows([claim(1, 1), claim(1, 2, previous="failed", error=error)])
    assert after_claim(history, max_attempts=1, max_group=100) == Proceed(1), "it is the last attempt"


@pytest.mark.seed("E14")
def test_the_sixth_reset_in_a_row_halts_where_five_are_allowed() -> None:
    assert isinstance(after_claim(RegionHistory(attempts=5), max_attempts=5, max_group=1), Proceed)
    assert isinstance(after_claim(RegionHistory(attempts=6), max_attempts=5, max_group=1), Halt)


@pytest.mark.seed("E14")
@pytest.mark.parametrize("ending", ["crashed", "failed"])
def test_a_region_that_never_commits_is_claimed_once_and_five_times_more(ending: str) -> None:
    history, runs = RegionHistory(), 0
    while runs < 50:
        history = history.with_rows([claim(1, history.epoch + 1, previous=str(history.last_outcome.value))])
        if isinstance(after_claim(history, max_attempts=5, max_group=8), Halt):
            break
        runs += 1
        decision = after_failure(Retry.ATTEMPT, group_size=1, attempts=history.attempts, max_attempts=5)
        if ending == "failed":
            if isinstance(decision, Halt):
                break
            history = history.with_rows([published(0, history.epoch, outcome="failed")])
    assert runs == 6  # five resets are allowed; the sixth halts


@pytest.mark.seed("E14")
def test_a_halt_counts_what_failed_and_names_the_parameter_that_allows_more() -> None:
    one = after_failure(Retry.ATTEMPT, group_size=1, attempts=1, max_attempts=1)
    assert one == Halt("failed 2 times in a row; 1 retry is allowed (max_consecutive_reset_attempts)")
    none = before_claim(Retry.ATTEMPT, attempts=0, max_attempts=0)
    assert none == Halt("failed once before a run could begin; 0 retries are allowed (max_consecutive_reset_attempts)")


@pytest.mark.seed("E14", "AU1")
@pytest.mark.parametrize("retry", list(Retry))
def test_before_a_claim_all_but_what_passes_and_what_others_do_is_an_attempt(retry: Retry) -> None:
    decisions = [before_claim(retry, attempts=done, max_attempts=2) for done in range(4)]
    counted = [EndRun(), EndRun()]
    if retry is Retry.QUIET:
        assert decisions == [Leave()] * 4
    elif retry is Retry.WAIT:
        assert decisions == [Stop()] * 4
    else:
        assert decisions[:2] == counted
        assert all(isinstance(decision, Halt) for decision in decisions[2:]), "the third failure in a row halts"


@pytest.mark.seed("E18", "AU1")
def test_other_code_takes_back_the_halt_of_code_that_failed_before_its_claim_and_no_other() -> None:
    def halted(**detail: str) -> RegionHistory:
        return RegionHistory.from_rows([claim(1, 1), row(RowKind.HALT, 0, reason="x", **detail)])

    assert is_lifted(halted(code="one"), "two")
    assert not is_lifted(halted(code="one"), "one")
    assert not is_lifted(halted(code="one"), ""), "a verb has no code"
    assert not is_lifted(halted(), "two"), "an operator's word stands"
    assert not is_lifted(RegionHistory(), "two")


@pytest.mark.seed("E14", "E18")
@pytest.mark.parametrize("relief", ["state", "resume"])
def test_a_state_or_an_operator_gives_the_whole_budget_again(relief: str) -> None:
    history = RegionHistory.from_rows([claim(1, 1), *(claim(1, n, previous="crashed") for n in range(2, 7))])
    assert history.attempts == 5
    after = group(1, [1], epoch=6) if relief == "state" else [row(RowKind.RESUME, 0, epoch=6, reason="mended")]
    assert history.with_rows(after).attempts == 0


def test_one_decision_a_class_of_error() -> None:
    alone = {"group_size": 1, "attempts": 0, "max_attempts": 5}
    assert after_failure(Retry.QUIET, **alone) == Leave()
    assert after_failure(Retry.WAIT, **alone) == Stop()
    assert after_failure(Retry.REFUSE, **alone) == Stop()
    assert after_failure(Retry.ATTEMPT, **alone) == EndRun()
    assert isinstance(after_failure(Retry.PERMANENT, **alone), Halt)


@given(st.sampled_from([Retry.ATTEMPT, Retry.PERMANENT]), st.integers(2, 2000), st.integers(0, 9))
@pytest.mark.seed("H31")
def test_a_failed_group_is_split_before_anybody_is_blamed(retry: Retry, size: int, attempts: int) -> None:
    assert after_failure(retry, group_size=size, attempts=attempts, max_attempts=5) == SplitGroup()


@given(st.sampled_from(list(Retry)), st.integers(1, 2000), st.integers(0, 9), st.integers(0, 9))
def test_quiet_errors_are_quiet_and_waiting_costs_nothing(retry: Retry, size: int, attempts: int, limit: int) -> None:
    decision = after_failure(retry, group_size=size, attempts=attempts, max_attempts=limit)
    assert isinstance(decision, Leave) == (retry is Retry.QUIET)
    assert isinstance(decision, Stop) == (retry in (Retry.WAIT, Retry.REFUSE))


@given(st.integers(1, 4000), st.lists(st.booleans(), max_size=30))
def test_a_group_stays_between_one_and_the_limit_and_doubles(limit: int, successes: list[bool]) -> None:
    size = GroupSize(1, limit)
    for succeeded in successes:
        before, size = size, size.after_success() if succeeded else size.after_failure()
        assert 1 <= size.current <= limit
        assert size.current == (min(limit, before.current * 2) if succeeded else 1)
