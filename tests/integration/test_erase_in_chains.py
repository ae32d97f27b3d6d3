"""A chain of regions is erased as a whole, whatever its readers have read, and goes on and back (ER6)."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import HandFed
from chained_by_hand import Reader, one, place, rewound, source_of
from integration.test_erase import found_in

from drainmark.jobs.protocol.persons import Person
from drainmark.orchestration.verbs.removals.erase import erase
from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["one", "place"]

PERSON = "canary-17@example.org"


def take(fed: HandFed, *values: str) -> None:
    for value in values:
        name = f"file-{len(list(fed.inbox.iterdir())) if fed.inbox.exists() else 0}"
        fed.write(name, [value])
        fed.add(name)
    fed.drain(len(values))


def reading(place: Workplace, folder: Path) -> Reader:
    sources = (source_of("read", "first"),)
    return Reader(place, folder / "none", region="down/read", names=("read",), sources=sources)


@pytest.mark.seed("ER6")
@pytest.mark.parametrize("read", [0, 1, 3, 4])
def test_readers_go_on_and_back_whatever_they_had_read(
    place: Workplace, tmp_path: Path, one: HandFed, read: int
) -> None:
    down = reading(place, tmp_path)
    for number, name in enumerate(("a", PERSON, "b", "c"), 1):
        take(one, name)
        if number <= read:
            down.run()
    if read == 4:
        down.tick()  # a slice that is cut and not read yet
        rewound(down, 2)
    certificate = erase(place, Person.parse(f"value = '{PERSON}'"), place.own_regions())
    assert certificate["found_afterwards"] == []
    assert found_in(place.home) == {}
    take(one, "d")
    down.run()
    assert down.rows() == ["a", "b", "c", "d"]
    rewound(down, 0)
    down.drain(1)
    assert down.rows() == ["a", "b", "c", "d"]
    assert found_in(place.home) == {}


@pytest.mark.seed("ER6")
def test_a_region_alone_says_that_its_upstream_holds_rows(place: Workplace, tmp_path: Path, one: HandFed) -> None:
    down = reading(place, tmp_path)
    take(one, "a", PERSON)
    down.run()
    certificate = erase(place, Person.parse(f"value = '{PERSON}'"), [down.region], is_whole=False)
    assert [each["kind"] for each in certificate["inputs"]] == ["period"]
    assert any("outside of the regions" in said for said in certificate["not_searched"])
    assert one.values() == [(1, "a"), (2, PERSON)]
    assert down.rows() == ["a"]
