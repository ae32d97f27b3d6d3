"""The moments at which groups of a region of several stages may be committed; the test plays the stages' threads."""

from __future__ import annotations

import datetime as dt
import threading
import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from waiting import SOON

import drainmark as dm
from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.graph.annotations import Alignment
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.id_runs import Ids, States
from drainmark.jobs.protocol.records.manifest import Image, Manifest, StagedFile
from drainmark.jobs.protocol.records.triggers import AGAIN, Trigger, TriggerStatus
from drainmark.jobs.protocol.stage_flow import Flow, InFlight
from drainmark.jobs.regions.plan import RegionPlan, compile_application
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.stages.board import Board, StageTask
from drainmark.jobs.runtime.stages.channels.rows import ArrowRows, Spool
from drainmark.jobs.runtime.stages.connected_stages import CommitIntervals, ConnectedStages
from drainmark.jobs.runtime.stages.group_parts import joinable, joined
from drainmark.jobs.runtime.stages.pipeline import Pipeline

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ALIGNED, UNALIGNED = Alignment.ALIGNED, Alignment.UNALIGNED


class Nowhere:
    """A staging area that stages nothing: all rows of these tests stay in memory."""

    def write(self, table: pa.Table, stem: str) -> tuple[StagedFile, ...]:
        return (StagedFile(path=stem, size=1, rows=table.num_rows, first_id=1, last_id=1),)

    def write_frame(self, frame: Any, subdirectory: str) -> tuple[StagedFile, ...]:
        raise NotImplementedError

    def path(self, subdirectory: str) -> Any:
        raise NotImplementedError

    def read_each(self, files: Any) -> Any:
        return iter(())

    def frame(self, session: Any, files: Any, schema: Any) -> Any:
        raise NotImplementedError


def region(interval: float | None = None, *, middle_interval: float | None = None, **parameters: Any) -> RegionPlan:
    """Return a region of three stages in a chain: `lines`, `middle`, `end`; `interval` is that of the last."""
    with dm.application("chain") as declared:

        @dm.consistent(trigger="operator-driven", **parameters)
        @dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text"))
        def lines(scanned: Any) -> Any:
            return scanned

        @dm.functor(inputs=[dm.buffered(lines, checkpoint_interval=middle_interval)])
        def middle(lines: Any) -> Any:
            return lines

        @dm.functor(inputs=[dm.buffered(middle, checkpoint_interval=interval)])
        def end(middle: Any) -> Any:
            return middle

        dm.sink(end, dm.DeltaAppend("ends"))
    return compile_application(dm.build_application(declared)).regions[0]


def board_of(plan: RegionPlan, history: RegionHistory | None = None) -> Board:
    return Board(
        plan, epoch=1, spool=Spool(Nowhere(), Nowhere()), history=history or RegionHistory(), group_of=group
    )  # fmt: skip


def group(first: int, last: int, **identity: Any) -> Group:
    members = (Assigned(sequence_id=number, trigger=trigger(number, **identity)) for number in range(first, last + 1))
    return Group(members=tuple(members), epoch=1, attempt=f"a{first}")


def trigger(number: int, **identity: Any) -> Trigger:
    return Trigger(
        id=number, region="chain/lines", uri=identity.pop("uri", f"f{number}"), identity=identity, identity_key="",
        size_bytes=1, order_index=number, status=TriggerStatus.PENDING, discovered_at=NOON,
    )  # fmt: skip


def staged(of: Group, **values: Any) -> StagedGroup:
    return StagedGroup(
        group=of, rows_in=values.pop("rows_in", {}), tables=values.pop("tables", {}), lookups={}, process_seconds=1.0,
        drain_seconds=0.5, **values,
    )  # fmt: skip


def work(board: Board, stage: str, times: int = 1, *, rows_out: int = 1) -> None:
    """Let a stage finish its next `times` groups; a row has eight bytes."""
    for _ in range(times):
        task = board.next(stage)
        assert isinstance(task, StageTask)
        streams = {channel.stream for channel in board.region.stage(stage).outputs}
        rows = pa.table({"_sequence_id": pa.array([task.group.first_id] * rows_out, pa.int64())})
        board.done(stage, task, staged(task.group), {stream: ArrowRows(rows) for stream in streams})


def ids(moment: Any) -> list[tuple[int, int]] | None:
    return None if moment is None else [(each.first_id, each.last_id) for each in moment.groups]


def test_an_aligned_group_is_committed_when_all_stages_have_done_it() -> None:
    board = board_of(region())
    board.give(group(1, 2))
    work(board, "lines")
    assert board.moment(ALIGNED, None) is None
    work(board, "middle")
    assert board.moment(ALIGNED, None) is None
    work(board, "end")
    moment = board.moment(ALIGNED, None)
    assert ids(moment) == [(1, 2)]
    assert moment is not None
    assert not moment.is_in_flight
    assert [part.stage for part in moment.snapshot.parts] == ["lines", "middle", "end"]
    assert not board.is_idle
    board.committed(moment, {}, 0)
    assert board.is_idle
    assert board.moment(ALIGNED, None) is None


def test_several_groups_that_are_complete_are_committed_at_once() -> None:
    board = board_of(region())
    for first in (1, 2, 3):
        board.give(group(first, first))
        work(board, "lines")
    work(board, "middle", 2)
    work(board, "end", 2)
    assert ids(board.moment(ALIGNED, None)) == [(1, 1), (2, 2)]


def test_an_unaligned_group_is_committed_when_the_starts_have_done_it() -> None:
    board = board_of(region())
    board.give(group(1, 1))
    work(board, "lines")
    first = board.moment(UNALIGNED, None)
    assert ids(first) == [(1, 1)]
    assert first is not None
    assert first.is_in_flight
    assert first.snapshot.through == {"lines": 1, "middle": 0, "end": 0}
    board.committed(first, {}, 0)
    board.give(group(2, 2))
    work(board, "middle")
    assert board.moment(UNALIGNED, None) is None, "a group is in hand, whose ids are lower than those of a progress row"
    work(board, "lines")
    second = board.moment(UNALIGNED, None)
    assert second is not None
    assert ids(second) == [(2, 2)]
    assert [(part.stage, part.last_id) for part in second.snapshot.parts] == [("lines", 2), ("middle", 1)]
    board.committed(second, {}, 0)
    work(board, "end")
    third = board.moment(UNALIGNED, None)
    assert third is not None
    assert ids(third) == []
    assert [(part.stage, part.last_id) for part in third.snapshot.parts] == [("end", 1)]
    board.committed(third, {}, 0)
    assert not board.is_idle
    work(board, "middle")
    work(board, "end")
    last = board.moment(UNALIGNED, None)
    assert last is not None
    assert not last.is_in_flight
    board.committed(last, {}, 0)
    assert board.is_idle


@pytest.mark.seed("E30")
def test_an_aligned_drain_that_lasts_is_ended_unaligned() -> None:
    board = board_of(region())
    board.give(group(1, 1))
    work(board, "lines")
    assert board.moment(ALIGNED, 60.0) is None
    moment = board.moment(ALIGNED, -1.0)
    assert ids(moment) == [(1, 1)]
    assert moment is not None
    assert moment.is_in_flight


@pytest.mark.seed("K1", "K6")
def test_a_stage_with_an_interval_of_its_own_asks_for_no_commit_before() -> None:
    board = board_of(region(interval=3600, alignment="unaligned"))
    board.give(group(1, 1))
    work(board, "lines")
    moment = board.moment(UNALIGNED, None)
    assert moment is not None
    board.committed(moment, {}, 0)
    board.give(group(2, 2))
    work(board, "lines")
    work(board, "middle")
    work(board, "end")
    second = board.moment(UNALIGNED, None)
    assert second is not None
    assert "end" not in {part.stage for part in second.snapshot.parts}
    assert second.snapshot.through["end"] == 0
    board.committed(second, {}, 0)
    assert not board.is_idle
    assert board.moment(UNALIGNED, None) is None
    work(board, "middle")
    work(board, "end")
    last = board.moment(UNALIGNED, None)  # no work is left, so the commit does not wait for the interval
    assert last is not None
    assert last.snapshot.through == {"lines": 2, "middle": 2, "end": 2}
    board.committed(last, {}, 0)
    assert board.is_idle


@pytest.mark.seed("K1", "K6")
def test_a_stage_behind_one_with_an_interval_asks_for_no_commit_of_nothing() -> None:
    """The work of `end` cannot be committed before that of `middle`; else empty rows would be committed repeatedly."""
    board = board_of(region(middle_interval=3600, alignment="unaligned"))
    for first in (1, 2):
        board.give(group(first, first))
        work(board, "lines")
    moment = board.moment(UNALIGNED, None)
    assert ids(moment) == [(1, 1), (2, 2)]
    assert moment is not None
    board.committed(moment, {}, 0)
    work(board, "middle")
    work(board, "end")
    assert board.moment(UNALIGNED, None) is None
    assert not board.is_idle
    work(board, "middle")
    work(board, "end")
    last = board.moment(UNALIGNED, None)
    assert last is not None
    assert [(part.stage, part.last_id) for part in last.snapshot.parts] == [
        ("middle", 1), ("middle", 2), ("end", 1), ("end", 2)
    ]  # fmt: skip


@pytest.mark.seed("F28", "K8", "V100")
@pytest.mark.parametrize("interval", [None, 3600])
@pytest.mark.parametrize("alignment", [ALIGNED, UNALIGNED])
def test_a_stage_behind_a_skipped_id_has_caught_up_without_having_done_it(
    alignment: Alignment, interval: float | None
) -> None:
    """6 was skipped while 4..5 was in flight: stages that had done 5 have passed 6; the last stage never does 6."""
    flow = Flow(
        through={"lines": 6, "middle": 6, "end": 3}, channels={"middle->end": (InFlight(first_id=4, last_id=5),)}
    )  # fmt: skip
    board = board_of(region(interval=interval), RegionHistory(states=States(Ids([(1, 6)])), flow=flow))
    assert board.moment(alignment, None) is None
    assert not board.has_caught_up
    work(board, "end")
    assert board.has_caught_up
    moment = board.moment(alignment, None)
    assert moment is not None
    assert [(part.stage, part.last_id) for part in moment.snapshot.parts] == [("end", 5)]
    assert not moment.is_in_flight
    board.committed(moment, {}, 6)
    assert board.is_idle


def test_the_starts_are_held_back_by_a_full_channel() -> None:
    board = board_of(region(max_inflight_bytes=4))
    assert board.has_room
    board.give(group(1, 1))
    assert not board.has_room, "the starts are at work"
    work(board, "lines")
    assert not board.has_room, "a batch always fits, and more do not"
    work(board, "middle")
    assert not board.has_room
    work(board, "end")
    assert board.has_room


@pytest.mark.seed("F29", "K6")
def test_what_is_kept_for_a_stage_with_an_interval_holds_the_starts_back() -> None:
    """A state may still need batches that are done; two in each channel are more than the region may hold."""
    board = board_of(region(interval=3600, alignment="unaligned", max_inflight_bytes=24))
    assert groups_begun(board) == 2
    moment = board.moment(UNALIGNED, None)
    assert ids(moment) == [(1, 1), (2, 2)]
    assert moment is not None
    board.committed(moment, {}, 2)
    assert board.has_room


@pytest.mark.seed("F29", "K8")
@pytest.mark.parametrize("given", [{}, {"alignment": "unaligned", "checkpoint_interval": 0}])
def test_nothing_is_kept_where_all_stages_stand_at_the_same_id_in_every_state(given: dict[str, Any]) -> None:
    board = board_of(region(interval=3600, max_inflight_bytes=24, **given))
    assert groups_begun(board) == 9
    assert not any(channel.kept_bytes for channel in board.exchange.channels.values())


def groups_begun(board: Board) -> int:
    """Let up to 9 groups of eight bytes pass all stages without a commit, while there is room; return their number."""
    for number in range(1, 10):
        if not board.has_room:
            return number - 1
        board.give(group(number, number))
        for stage in ("lines", "middle", "end"):
            work(board, stage)
    return 9


@pytest.mark.seed("F29", "K6")
def test_a_stage_whose_interval_keeps_too_much_is_committed_before_it_is_over() -> None:
    board = board_of(region(interval=3600, alignment="unaligned", max_inflight_bytes=100))
    for number in (1, 2):
        board.give(group(number, number))
        work(board, "lines")
    commit(board)
    work(board, "middle", rows_out=12)
    commit(board)
    work(board, "end")
    assert not board.has_room
    last = board.moment(UNALIGNED, None)
    assert last is not None
    assert [(part.stage, part.last_id) for part in last.snapshot.parts] == [("end", 1)]
    assert board.has_room


def commit(board: Board) -> None:
    """Commit all groups that can be committed."""
    moment = board.moment(UNALIGNED, None)
    assert moment is not None
    board.committed(moment, {}, 0)


@pytest.mark.seed("K5", "K8", "N19")
@pytest.mark.parametrize(("interval", "is_held_up"), [(None, True), (0, False), (3600, False)])
def test_blocking_checkpoints_hold_the_flow_up_when_one_is_due(interval: float | None, is_held_up: bool) -> None:
    plan = region(checkpoints="blocking", checkpoint_interval=interval)
    stages, pipeline = pipeline_of(plan)
    assert not pipeline.is_held_up, "there is nothing to establish"
    assert stages.board is not None
    stages.board.give(group(1, 1))
    assert pipeline.is_held_up is is_held_up
    stages.intervals.committed_at -= 3600.0
    assert pipeline.is_held_up is (interval != 0)
    pipeline.under_way = object()
    assert pipeline.is_held_up
    assert not pipeline_of(region(checkpoints="non-blocking"))[1].is_held_up


@pytest.mark.seed("K7")
@pytest.mark.parametrize(("seconds", "dropped"), [(0.5, 0), (25.0, 2)])
def test_intervals_in_which_nothing_came_are_not_dropped(seconds: float, dropped: int) -> None:
    """Only intervals that ended during a commit are dropped: an hour without input requested no commit."""
    now = time.monotonic()
    intervals = CommitIntervals(dt.timedelta(seconds=10), committed_at=now - 3600.0, begun_at=now - seconds)
    intervals.end(now, told=0)
    assert intervals.dropped == dropped


def pipeline_of(plan: RegionPlan) -> tuple[ConnectedStages, Any]:
    """Return stages, and their pipeline, which decides when groups begin; no stage works in these tests."""
    nobody: Any = None
    blueprint: Any = SimpleNamespace(region=plan)
    stages = ConnectedStages(
        blueprint=blueprint, owner=nobody, grace=nobody, crew=nobody,
        intervals=CommitIntervals(plan.parameters.checkpoint_interval), board=board_of(plan),
    )  # fmt: skip
    return stages, Pipeline(owner=nobody, stages=stages, ids=nobody)


@pytest.mark.seed("V102", "V103", "V110")
def test_a_board_that_is_closed_gives_nothing_and_takes_nothing() -> None:
    board = board_of(region())
    board.give(group(1, 1))
    task = board.next("lines")
    assert task is not None
    board.close()
    with pytest.raises(DrainmarkError):
        board.done("lines", task, staged(task.group), {"lines": ArrowRows(pa.table({"_sequence_id": [1]}))})
    with pytest.raises(DrainmarkError):
        board.restarted("lines")
    with pytest.raises(DrainmarkError), board.entered():
        raise AssertionError("the states may be those of the next board by now")
    assert board.pause(60.0)


def test_a_board_is_not_closed_while_an_attempt_takes_hold_of_the_states() -> None:
    """Otherwise the attempt would hold the states of the next board, and change them with a group of this one."""
    board = board_of(region())
    with board.entered():
        ending = threading.Thread(target=board.close)
        ending.start()
        ending.join(0.1)
        assert ending.is_alive()
        assert not board.is_closed
    ending.join(SOON)
    assert board.is_closed


def test_stages_catch_up_with_an_id_that_was_skipped_and_came_to_none_of_them() -> None:
    batch = InFlight(first_id=1, last_id=1)
    flow = Flow(through={"lines": 2, "middle": 0, "end": 0}, channels={"lines->middle": (batch,)})
    board = board_of(region(), RegionHistory(flow=flow))
    assert not board.has_caught_up
    work(board, "middle")
    work(board, "end")
    assert board.has_caught_up
    moment = board.moment(ALIGNED, None)
    assert moment is not None
    assert ids(moment) == []
    board.committed(moment, {}, 2)
    assert board.is_idle


def test_groups_join_without_gaps_and_who_replaces_others_is_alone() -> None:
    assert [each.first_id for each in joinable([group(1, 2), group(3, 3), group(5, 5)])] == [1, 3]
    again = group(2, 2, **{AGAIN: 1})
    assert [each.first_id for each in joinable([group(1, 1), again, group(3, 3)])] == [1]
    assert [each.first_id for each in joinable([again, group(3, 3)])] == [2]


def test_a_group_that_replaces_others_is_committed_when_all_stages_have_done_it() -> None:
    board = board_of(region())
    board.give(group(1, 1, **{AGAIN: 1}))
    work(board, "lines")
    board.give(group(2, 2))
    work(board, "lines")
    work(board, "middle", 2)
    assert board.moment(UNALIGNED, None) is None, "nothing overtakes it, either"
    work(board, "end")
    moment = board.moment(UNALIGNED, None)
    assert ids(moment) == [(1, 1)]
    assert moment is not None
    assert not moment.is_in_flight
    assert {part.stage for part in moment.snapshot.parts} == {"lines", "middle", "end"}
    board.committed(moment, {}, 1)
    assert ids(board.moment(UNALIGNED, None)) == [(2, 2)]


def test_parts_become_one_group() -> None:
    board = board_of(region())
    board.give(group(1, 1))
    board.give(group(2, 2))
    for stage in ("lines", "middle", "end"):
        for number in (1, 2):
            task = board.next(stage)
            assert task is not None
            image = Image(table="t", at=number, files=()) if stage == "end" else None
            file = StagedFile(path=f"{stage}{number}", size=1, rows=1, first_id=number, last_id=number)
            made = staged(
                task.group, rows_in={number: 3 if stage == "lines" else 0}, rows_quarantined={number: 1},
                unmet={number: {stage: number}}, refused={number: stage}, upserts=("u",),
                tables={"t" if stage == "end" else stage: StagedTable(files=(file,), image=image)},
            )  # fmt: skip
            rows = {
                c.stream: ArrowRows(pa.table({"_sequence_id": [number]})) for c in board.region.stage(stage).outputs
            }
            board.done(stage, task, made, rows)
    moment = board.moment(ALIGNED, None)
    assert moment is not None
    whole = joined(group(1, 2), moment, {"files": "end"})
    assert whole.rows_in == {1: 3, 2: 3}
    assert whole.rows_quarantined == {1: 3, 2: 3}
    unmet = {"lines": 1, "middle": 1, "end": 1}
    assert whole.unmet == {1: unmet, 2: dict.fromkeys(unmet, 2)}
    assert whole.manifest().late == {}
    late = joined(group(2, 2), moment, {}).manifest().late
    said = {"rows_quarantined": 3, "unmet": unmet, "reason": "lines; middle; end"}
    assert late == {1: said}, "of an id that was committed before"
    assert whole.refused[1] == "lines; middle; end"
    assert [file.path for file in whole.tables["t"].files] == ["end1", "end2"]
    assert whole.tables["t"].image == Image(table="t", at=2, files=())
    assert whole.upserts == ("u",)
    assert whole.spans == {"files": ((1, 1), (2, 2))}
    assert (whole.process_seconds, whole.drain_seconds) == (2.0, 1.0)
    assert whole.stages == {}


@pytest.mark.seed("K6")
def test_what_is_found_of_ids_of_an_earlier_row_is_in_the_manifest() -> None:
    late = staged(
        group(3, 4), rows_quarantined={1: 2, 2: 0, 3: 5}, unmet={1: {"paid": 2}}, refused={2: "gone", 4: "bad"}
    )
    assert late.manifest().late == {1: {"rows_quarantined": 2, "unmet": {"paid": 2}}, 2: {"reason": "gone"}}
    assert Manifest.from_json(late.manifest().to_json()) == late.manifest()
    assert "late" not in staged(group(1, 2), rows_quarantined={1: 2}).manifest().to_json()
