"""Sinks and states that leave the code and come back, or are added late: commits by hand, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed, Imaged
from followed import follow

from drainmark.jobs.errors import StateIncompatible
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.runtime.commit.claim_checks import full_of, states_with_holes
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings

TABLE, STATE, OWN = "lake/last", "state/by_hand/last", "state/by_hand/sink"


class Changing(Imaged):
    """A region with the upsert sink and the state that is its history, except the tables in `without`."""

    without: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return tuple(table for table in super().tables if table.name not in self.without)

    def group(self, count: int) -> Any:
        if STATE in self.without:
            return HandFed.group(self, count)
        staged = super().group(count)
        return replace(staged, upserts=()) if TABLE in self.without else staged


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    databases = {"shop": "sqlite:///{home}/shop.db"}
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    yield found
    found.registry.close()


@pytest.fixture
def fed(place: Workplace, tmp_path: Path) -> Changing:
    return Changing(place, tmp_path / "inbox", code=Code(operators={"any": "1"}))


def feed(fed: Changing, *files: str, without: tuple[str, ...] = ()) -> None:
    """Process files with one letter in each row, with code that lacks some tables."""
    fed.without = without
    first = len(list(fed.inbox.glob("*"))) if fed.inbox.exists() else 0
    for number, values in enumerate(files, first + 1):
        fed.write(str(number), list(values))
        fed.add(str(number))
    fed.drain()


def last_ids(fed: Changing) -> list[tuple[int, str]]:
    """Return the expected table, computed in plain Python: the last id of each value."""
    last: dict[str, int] = {}
    for number, row in fed.history().states.items():
        last |= dict.fromkeys(Path(row.trigger_uri or "").read_text().splitlines(), number)
    return sorted((number, value) for value, number in last.items())


def read(fed: Changing) -> list[tuple[int, str]]:
    """Return the table as of the last state."""
    rows = RegionReader(fed.workplace.settings, fed.region).as_of(TABLE).to_pylist()
    return sorted((row["_sequence_id"], row["value"]) for row in rows)


@pytest.mark.seed("H29", "V147")
@pytest.mark.parametrize("is_dropped", [False, True], ids=["changes", "an image in their place"])
def test_a_sink_that_comes_back_shows_what_its_aggregate_counted_meanwhile(fed: Changing, is_dropped: bool) -> None:
    feed(fed, "kl", "m")
    feed(fed, "kn", "o", without=(TABLE,))
    if is_dropped:
        with fed.owning() as owner:
            maintain_region(owner, horizon=0)
        assert fed.history().dropped == {STATE: 4}
    feed(fed, "l")
    assert fed.values("last") == read(fed) == last_ids(fed)
    assert fed.history().lags == {}


@pytest.mark.seed("H29")
def test_a_sink_that_is_declared_late_shows_all_that_its_aggregate_has(fed: Changing) -> None:
    feed(fed, "kl", "kn", without=(TABLE,))
    feed(fed, "o")
    assert fed.values("last") == read(fed) == last_ids(fed)


@pytest.mark.seed("H29")
def test_a_claim_that_ends_before_it_brought_a_sink_up_leaves_that_to_the_next(fed: Changing) -> None:
    feed(fed, "kl", without=(TABLE,))
    fed.without = ()
    with pytest.raises(KeyboardInterrupt), fed.owning():
        raise KeyboardInterrupt
    assert fed.history().lags == {TABLE: 0}
    assert [row["value"] for row in RegionReader(fed.workplace.settings, fed.region).now(TABLE).to_pylist()] == [
        "k",
        "l",
    ]
    feed(fed)
    with fed.owning() as owner:
        owner.visible.bring_up_all()
    assert fed.values("last") == last_ids(fed)


@pytest.mark.seed("H29", "H4")
@pytest.mark.parametrize("to", [1, 3, 4])
def test_rewinds_while_a_sink_is_away_hide_nothing_from_it(fed: Changing, to: int) -> None:
    feed(fed, "kl", "m")
    feed(fed, "kn", "mo", "p", without=(TABLE,))
    for _ in range(2):  # the second claims the tables that the first rewind affected
        reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=to)))
    fed.before = [{"value": value, "_sequence_id": number} for number, value in last_ids(fed)]
    with fed.owning() as owner:
        owner.visible.bring_up_all()
    fed.without = ()
    fed.drain()
    assert fed.values("last") == read(fed) == last_ids(fed)


@pytest.mark.seed("N27")
def test_a_state_that_lacks_what_was_made_without_its_operator_is_refused(fed: Changing) -> None:
    gone = (TABLE, STATE)
    feed(fed, "kl")
    feed(fed, without=gone)
    feed(fed, "m", "n", without=gone)
    with pytest.raises(StateIncompatible, match="was not in the code from state 2 to 3") as refused:
        feed(fed, "o")
    assert "--drop-state last" in str(refused.value.remedy)
    assert fed.history().committed_id == 3
    follow(str(refused.value), "reset", fed.workplace.home)
    fed.drain()
    assert fed.values("last") == read(fed) == last_ids(fed)
    assert [Path(row.trigger_uri or "").name for row in fed.history().states.values()] == ["1", "2", "3", "4"]


class Mirrored(Imaged):
    """A region with an upsert sink that has a history of its own, to which the changes of the state come."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        *others, visible = super().tables
        history = replace(others[-1], name=OWN, operator="sink")
        return (*others, history, replace(visible, history=OWN, withdrawn_by=(STATE,), deletes=True))

    def group(self, count: int) -> Any:
        staged = super().group(count)
        area = self.workplace.store(self.region).staging(OWN, staged.group.epoch, staged.group.attempt)
        state = staged.tables[STATE]
        assert state.rows is not None
        own = replace(state, image=None, files=area.write(state.rows, "own"))
        return replace(staged, tables={**staged.tables, OWN: own})


def test_a_table_to_which_the_changes_of_a_state_come_keeps_it_from_beginning_anew(
    place: Workplace, tmp_path: Path
) -> None:
    fed = Mirrored(place, tmp_path / "inbox")
    store = fed.workplace.store(fed.region)
    assert full_of(store, fed.history(), fed.tables, {STATE}) == []
    fed.write("1", ["k"])
    fed.add("1")
    fed.drain()
    assert full_of(store, fed.history(), fed.tables, {STATE}) == [TABLE]
    assert full_of(store, fed.history(), fed.tables, {"state/by_hand/other"}) == []


def test_a_state_that_is_back_is_offered_no_rewind_beyond_the_horizon(fed: Changing) -> None:
    gone = (TABLE, STATE)
    fed.code = replace(fed.code, horizon=1)
    feed(fed, "kl")
    feed(fed, without=gone)
    feed(fed, "m", "n", without=gone)
    with pytest.raises(StateIncompatible) as refused:
        feed(fed, "o")
    assert f"reset {fed.region} --to 0" in str(refused.value.remedy)
    follow(str(refused.value), "reset", fed.workplace.home)
    fed.before = []
    fed.drain()
    assert fed.values("last") == read(fed) == last_ids(fed)


@pytest.mark.seed("N27")
def test_a_state_comes_back_where_nothing_was_made_without_it(fed: Changing) -> None:
    gone = (TABLE, STATE)
    feed(fed, "kl")
    feed(fed, "m", without=gone)
    fed.without = ()
    assert states_with_holes(fed.history(), fed.tables).keys() == {STATE}
    reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    assert states_with_holes(fed.history(), fed.tables) == {}
    fed.drain()
    assert fed.values("last") == read(fed) == last_ids(fed)
    assert [value for _, value in fed.values("last")] == ["k", "l", "m"]
