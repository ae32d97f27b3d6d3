"""A run that is killed between its commit and its OpenLineage event: the next run tells of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from event_receiver import EventReceiver, receiving
from scene import Scene

from drainmark.jobs.failpoints import FailPoint

pytestmark = [pytest.mark.spark, pytest.mark.recovery]


@pytest.fixture
def receiver() -> Iterator[EventReceiver]:
    with receiving() as got:
        yield got


def test_the_event_of_a_group_arrives_although_its_process_was_killed_before_it(
    build: Callable[..., Scene], receiver: EventReceiver
) -> None:
    scene = build("two_regions")
    scene.settings = {**scene.settings, "openlineage_url": receiver.url}
    scene.run_killed(["scan"], ["run", 2], failpoints=f"{FailPoint.RESUME_BEFORE}:kill:1")
    assert [receiver.of(kind) for kind in ("COMPLETE", "FAIL", "ABORT")] == [[], [], []]
    committed = scene.history.committed_id
    assert committed == 2, "the group exists"
    scene.run_well()
    groups = [each["run"]["facets"]["drainmark_group"] for each in receiver.of("COMPLETE")]
    assert (groups[0]["firstSequenceId"], groups[0]["lastSequenceId"]) == (1, 2)
    assert groups[-1]["lastSequenceId"] == scene.history.committed_id
    ids = [number for each in groups for number in range(each["firstSequenceId"], each["lastSequenceId"] + 1)]
    assert sorted(ids) == sorted(scene.history.states), "each group once"
    tables = {each["name"].rpartition("/")[2] for each in receiver.of("COMPLETE")[0]["outputs"]}
    assert tables == {"two_customers", "two_item_changes"}
