"""The test kit treats rows as equal if their ids belong to the same files, also ids inside a state."""

from __future__ import annotations

from typing import Any

from drainmark.orchestration.testing.comparing import differences, multiset

GOLDEN, REPLAYED = {1: 1, 2: 2}, {1: 1, 5: 2}


def state(number: int, position: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of an aggregate's state; with a position, its newest row is stored as an id and a position."""
    place = {"_sequence_id": number, "_position": {"block": 0, "row": position}}
    return {"user": "ann", "_newest": {"id": number if position is None else place, "value": 7},
            "_sequence_id": number, **more}  # fmt: skip


def test_ids_that_a_state_keeps_are_places_of_files() -> None:
    for position in (None, 3):
        golden = multiset([state(2, position)], GOLDEN, is_state=True)
        assert differences(golden, multiset([state(5, position)], REPLAYED, is_state=True)) == []
        wrong = state(5, position) | {"_newest": state(1, position)["_newest"]}
        assert differences(golden, multiset([wrong], REPLAYED, is_state=True)), "it kept that of another file"
        gone = state(5, position) | {"_newest": state(2, position)["_newest"]}
        assert "not in force" in "".join(differences(golden, multiset([gone], REPLAYED, is_state=True)))


def test_rows_that_wait_in_a_state_are_of_the_same_file() -> None:
    """`dm.delay` and `dm.barrier` keep such rows."""

    def held(number: int) -> dict[str, Any]:
        return {"_from": number, "_place": 1, "_due": 3, "user": "ann", "_sequence_id": number}

    golden = multiset([held(2)], GOLDEN, is_state=True)
    assert differences(golden, multiset([held(5)], REPLAYED, is_state=True)) == []
    assert differences(golden, multiset([held(5) | {"_from": 1}], REPLAYED, is_state=True))
    assert multiset([held(2)], GOLDEN) != multiset([held(5)], REPLAYED), "a sink's column is a user's"


def test_an_id_of_the_users_is_left_alone() -> None:
    """This holds in sinks, in visible columns, and inside a row that a state keeps."""
    mine = {"id": 2, "value": 7}
    for rows in ({"_newest": mine}, {"newest": mine}, {"_row": {**mine, "user": "ann"}}):
        is_state = "_newest" not in rows
        assert multiset([rows], GOLDEN, is_state=is_state) == multiset([rows], REPLAYED, is_state=is_state)
