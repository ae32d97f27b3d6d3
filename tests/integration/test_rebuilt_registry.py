"""A registry that is rebuilt from the checkpoint tables knows each input as the lost one did."""

from __future__ import annotations

from pathlib import Path

from by_hand import HandFed

from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.runtime.messages import full_identity
from drainmark.orchestration.doctor.registry_repair import repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings


def test_a_lost_input_gives_way_to_the_file_that_came_in_its_place(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    fed = HandFed(place, tmp_path / "inbox")
    uri = str(fed.write("a", ["a1"]))
    fed.add("a")
    with fed.owning() as owner:
        (lost,) = fed.next(1)
        owner.halts.refuse(uri, full_identity(lost), "it is gone")
        place.registry.triggers.mark(fed.region, owner.epoch, [lost.id], TriggerStatus.MISSING, "it is gone")
    fed.write("a", ["a2", "a3"])
    fed.add("a")
    fed.drain()
    before = knowledge(fed)
    assert {status for _, status in before[1]} == {TriggerStatus.COMMITTED, TriggerStatus.MISSING}
    for file in place.home.glob("registry.db*"):
        file.unlink()
    place.registry.close()
    place._registry = None
    repair(place)
    assert knowledge(fed) == before
    place.registry.close()


def knowledge(fed: HandFed) -> tuple[dict[str, str], list[tuple[str, TriggerStatus]]]:
    """Return the facts that a scan asks for, and each input with its status."""
    triggers = fed.workplace.registry.triggers
    inputs = triggers.by_uri(fed.region, str(fed.inbox / "a"))
    return triggers.known(fed.region), sorted((each.identity_key, each.status) for each in inputs)
