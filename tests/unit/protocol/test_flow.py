"""Any flow in the history: the ids that a stage lacks are in flight in front of it, each once (F1, F19, F28, K10)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from checkpoint_rows import claim, group, rewind, row, skip
from hypothesis import given
from hypothesis import strategies as st
from test_digest import between_commits, digested

from drainmark.jobs.protocol.counters import UNMET
from drainmark.jobs.protocol.digest import digest_of
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import PLAIN_FORMAT, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import Image, StagedFile
from drainmark.jobs.protocol.retention import files_within_horizon
from drainmark.jobs.protocol.stage_flow import ChannelLink, Flow, Half, InFlight, channels_to_json, links_to_json

STAGES = {"start": [], "middle": ["parse", "count"], "end": ["sink"]}
CHANNELS = {"start->middle": ("start", "middle"), "start->end": ("start", "end"), "middle->end": ("middle", "end")}
LINKS = {
    name: ChannelLink(stage_from=producer, stage_to=consumer, columns={"word": "string"})
    for name, (producer, consumer) in CHANNELS.items()
}
TABLE = "state/app/count"
EMPTY: dict[str, Any] = {"files": {}, "upserts": [], "images": [], "lookups": {}}


@dataclasses.dataclass
class Region:
    """A simple model of a region of three stages: the groups, and the last id that each stage finished."""

    rows: list[CheckpointRow] = dataclasses.field(default_factory=list)
    groups: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    skips: set[int] = dataclasses.field(default_factory=set)
    through: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    images: list[int] = dataclasses.field(default_factory=list)
    next_id: int = 1
    epoch: int = 0

    @property
    def committed(self) -> int:
        return max([0, *self.skips, *(last for _, last in self.groups)])

    def claim(self, _: int) -> None:
        self.epoch += 1
        code = {"operators": {"parse": "x"}, "stages": STAGES, "channels": links_to_json(LINKS)}
        self.rows.append(claim(self.next_id, self.epoch, "clean", **code))

    def verb(self, _: int) -> None:
        """Append a claim of a command, which has no code."""
        self.epoch += 1
        self.rows.append(claim(self.next_id, self.epoch, "clean"))

    def unaligned(self, number: int) -> None:
        self._group(1 + number % 3)
        self.through["start"] = self.groups[-1][1]
        self._move(number)
        self._commit(RowKind.STATE, number)

    def aligned(self, number: int) -> None:
        self._group(1 + number % 3)
        self.through = dict.fromkeys(STAGES, self.groups[-1][1])
        self._commit(RowKind.STATE, number)

    def progress(self, number: int) -> None:
        self._move(number + 1)
        self._commit(RowKind.PROGRESS, number)

    def skip(self, number: int) -> None:
        before = self.committed
        self.skips.add(self.next_id)
        self.rows.append(skip(self.next_id, number, self.epoch))
        is_idle = not any(self.lacking(channel) for channel in CHANNELS)
        for name, done in self.through.items():
            self.through[name] = self.next_id if done >= before or is_idle else done
        self.next_id += 1

    def rewind(self, number: int) -> None:
        targets = [0, *(n for first, last in self.groups for n in range(first, last + 1))]
        to = targets[number % len(targets)]
        self.rows.append(rewind(self.next_id, to, self.epoch))
        self.groups = [(first, min(last, to)) for first, last in self.groups if first <= to]
        self.skips = {n for n in self.skips if n <= to}
        self.through = {name: min(done, to) for name, done in self.through.items()}
        self.images = [at for at in self.images if at <= to]
        self.next_id += 1

    def lacking(self, channel: str) -> list[tuple[int, int]]:
        """Return the groups that the producer of a channel has finished and the consumer has not."""
        producer, consumer = (self.through[name] for name in CHANNELS[channel])
        return [(first, last) for first, last in self.groups if consumer < first and last <= producer]

    def _group(self, count: int) -> None:
        self.groups.append((self.next_id, self.next_id + count - 1))
        self.next_id += count

    def _move(self, number: int) -> None:
        """Let each stage finish some of the groups that it can process; a stage always stops at the end of a group."""
        for name, sources in (("middle", ("start",)), ("end", ("start", "middle"))):
            limit = min(self.through[source] for source in sources)
            todo = [last for _, last in self.groups if self.through[name] < last <= limit]
            if todo[: number % 4]:
                self.through[name] = todo[: number % 4][-1]

    def _commit(self, kind: RowKind, number: int) -> None:
        found = {name: self.lacking(name) for name in CHANNELS}
        manifest = dict(EMPTY)
        if any(found.values()):
            batches = {name: tuple(batch(*span) for span in spans) for name, spans in found.items()}
            manifest |= {"stages": dict(self.through), "channels": channels_to_json(batches)}
        if number % 2 and self.through["middle"]:
            self.images.append(self.through["middle"])
            manifest["images"] = [Image(table=TABLE, at=self.through["middle"], files=()).to_json()]
        if kind is RowKind.STATE:
            first, last = self.groups[-1]
            self.rows += group(first, list(range(first, last + 1)), epoch=self.epoch, manifest=manifest)
        else:
            self.rows.append(row(RowKind.PROGRESS, self.next_id, epoch=self.epoch, manifest=manifest))
            self.next_id += 1


def batch(first: int, last: int) -> InFlight:
    file = StagedFile(path=f"_staged/1-a/b-{first}.parquet", size=9, rows=3, first_id=first, last_id=last)
    return InFlight(first_id=first, last_id=last, files=(file,), rows=3, bytes=9)


VERBS = ["claim", "verb", "unaligned", "unaligned", "unaligned", "aligned", "progress", "progress", "skip", "rewind"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 9)), max_size=20)


def region_of(steps: list[tuple[str, int]]) -> Region:
    region = Region()
    region.claim(0)
    for verb, number in steps:
        getattr(region, verb)(number)
    return region


def spans(flow: Flow, channel: str) -> list[tuple[int, int]]:
    return [(batch.first_id, batch.last_id) for batch in flow.channels.get(channel, ())]


@pytest.mark.seed("F1", "F19", "F28")
@given(STEPS)
def test_what_a_stage_lacks_is_in_flight_in_front_of_it(steps: list[tuple[str, int]]) -> None:
    region = region_of(steps)
    history = RegionHistory.from_rows(region.rows)
    assert history.committed_id == region.committed
    assert {name: spans(history.flow, name) for name in CHANNELS} == {name: region.lacking(name) for name in CHANNELS}
    if history.flow.channels:
        assert history.flow.through == region.through
    for name, (_, consumer) in CHANNELS.items():
        ids = [n for first, last in spans(history.flow, name) for n in range(first, last + 1)]
        assert all(n > history.flow.through[consumer] and n in history.states for n in ids)


@given(STEPS, st.integers(0, 40))
def test_a_rewind_to_any_id_leaves_what_leads_there(steps: list[tuple[str, int]], to: int) -> None:
    region = region_of(steps)
    region.rewind(to)
    flow = RegionHistory.from_rows(region.rows).flow
    assert {name: spans(flow, name) for name in CHANNELS} == {name: region.lacking(name) for name in CHANNELS}
    assert flow.through == region.through


@given(STEPS, st.integers(0, 40))
def test_a_digest_knows_the_stages(steps: list[tuple[str, int]], cut: int) -> None:
    rows = region_of(steps).rows
    cut = between_commits(rows, cut)
    whole, continued = RegionHistory.from_rows(rows), digested(rows[:cut]).with_rows(rows[cut:])
    assert digest_of(continued) == digest_of(whole)
    assert continued.flow == whole.flow
    assert [continued.image_of(TABLE, at) for at in range(12)] == [whole.image_of(TABLE, at) for at in range(12)]


@given(STEPS, st.integers(0, 30))
def test_the_image_at_an_id_is_the_newest_that_is_not_above_it(steps: list[tuple[str, int]], at: int) -> None:
    region = region_of(steps)
    history = RegionHistory.from_rows(region.rows)
    image = history.image_of(TABLE, at)
    # A row of a plain state has no stages, and its image is that of its own id.
    assert (image.at if image else None) == max((found for found in region.images if found <= at), default=None)


def test_a_progress_row_is_no_state_and_takes_an_id() -> None:
    region = region_of([("unaligned", 0), ("unaligned", 0), ("progress", 3)])
    history = RegionHistory.from_rows(region.rows)
    assert (history.committed_id, history.next_id) == (2, 4)
    assert list(history.states) == [1, 2]
    assert [found.kind for found in history.unpublished] == [RowKind.STATE, RowKind.STATE, RowKind.PROGRESS]


LATE = [
    {"1": {"rows_quarantined": 2, "unmet": {"paid": 2}}, "2": {"reason": "a feed broke"}},
    {"1": {"rows_quarantined": 1, "unmet": {"named": 1}, "reason": "so did another"}},
]


def late_rows() -> list[CheckpointRow]:
    """Return rows that commit 1 and 2 (2 has bad rows); late findings come with a progress row and with the state 4."""
    rows = [claim(1, 1), *group(1, [1, 2], manifest=EMPTY, rows_quarantined=5, unmet={"paid": 3})]
    rows.append(row(RowKind.PROGRESS, 3, manifest={**EMPTY, "late": LATE[0]}))
    return [*rows, *group(4, [3], manifest={**EMPTY, "late": LATE[1]}, rows_quarantined=7)]


@pytest.mark.seed("K6")
@pytest.mark.parametrize("cut", range(6))
def test_what_stages_find_late_is_said_of_the_states_that_it_is_of(cut: int) -> None:
    rows = late_rows()
    cut = between_commits(rows, cut)
    for history in (digested(rows[:cut]).with_rows(rows[cut:]), digested(rows)):
        found = {number: state.detail for number, state in history.states.items()}
        assert [found[number].get("rows_quarantined") for number in (1, 2, 4)] == [3, 5, 7]
        assert [found[number].get("unmet") for number in (1, 2)] == [{"paid": 2, "named": 1}, {"paid": 3}]
        assert (history.totals.counts[f"{UNMET}paid"], history.totals.counts[f"{UNMET}named"]) == (5, 1)
        assert found[1]["reason"] == history.states[1].detail["reason"] == "so did another"
        assert found[2]["reason"] == "a feed broke"
        assert "reason" not in found[4]
        assert history.totals.counts["rows_quarantined"] == 15
        assert next(iter(history.states.rows.of(["f1"]))).detail["rows_quarantined"] == 3


def test_a_late_word_counts_once_however_often_its_row_is_read() -> None:
    rows = late_rows()
    before = RegionHistory.from_rows(rows[:3])
    for rest in (rows[3:], rows[3:], rows[4:]):
        assert before.with_rows(rest).states[1].detail["rows_quarantined"] == sum(
            late["1"]["rows_quarantined"] for late in LATE[len(LATE) - len(rest) :]
        )


@pytest.mark.seed("F28", "H2")
def test_a_claim_without_a_place_for_what_is_in_flight_leaves_it_as_it_is() -> None:
    """An older owner put batches in flight between the look and the claim; the next owner with fitting code has all."""
    rows = region_of([("unaligned", 0), ("unaligned", 0)]).rows
    before = RegionHistory.from_rows(rows).flow
    assert before.channels
    for code in ({}, {"stages": STAGES, "channels": links_to_json(without("start->middle"))}):
        later = [*rows, claim(3, 2, "clean", operators={"parse": "x"}, **code)]
        assert RegionHistory.from_rows(later).flow == before


def test_code_of_one_stage_ends_the_facts_of_stages() -> None:
    rows = region_of([("aligned", 0)]).rows
    assert RegionHistory.from_rows(rows).flow.through == {"start": 1, "middle": 1, "end": 1}
    later = [*rows, claim(2, 2, "clean", operators={"parse": "x"})]
    assert RegionHistory.from_rows(later).flow == Flow()
    assert '"flow"' not in digest_of(RegionHistory.from_rows(later))


def test_what_is_in_flight_is_for_the_cut_that_put_it_there() -> None:
    flow = RegionHistory.from_rows(region_of([("unaligned", 0)]).rows).flow
    assert flow.links == LINKS
    assert list(flow.misfits(STAGES, LINKS)) == []
    assert len(list(flow.misfits(STAGES, without("middle->end")))) == 0  # nothing was in flight in this channel
    assert len(list(flow.misfits(STAGES, without("middle->end", "start->end")))) == 1
    assert len(list(flow.misfits({"start": ["count"], "middle": ["parse"], "end": ["sink"]}, LINKS))) == 1
    assert len(list(flow.misfits({**STAGES, "fourth": []}, LINKS))) == 1  # its input is partly processed
    assert list(Flow().misfits({}, {})) == []


def without(*names: str) -> dict[str, ChannelLink]:
    return {name: link for name, link in LINKS.items() if name not in names}


@pytest.mark.seed("F1", "F28")
def test_a_further_channel_between_stages_that_stand_apart_is_refused() -> None:
    """Its reader would wait for ids that its writer has already done, or get ids that it has done itself."""
    batches = {"start->middle": (batch(4, 5),), "start->end": (batch(4, 5),)}
    before = without("middle->end")
    apart = Flow(through={"start": 5, "middle": 3, "end": 4}, channels=batches, links=before)
    (why,) = apart.misfits({}, LINKS)
    assert "'middle->end' is new" in why
    abreast = dataclasses.replace(apart, through={"start": 5, "middle": 3, "end": 3})
    assert list(abreast.misfits({}, LINKS)) == []
    assert list(dataclasses.replace(apart, channels={}).misfits({}, LINKS)) == []


@pytest.mark.seed("F28")
def test_what_is_in_flight_has_the_columns_that_its_reader_expects() -> None:
    flow = Flow(through={"start": 5, "middle": 3, "end": 5}, channels={"start->middle": (batch(4, 5),)}, links=LINKS)
    for columns in ({"word": "bigint"}, {"word": "string", "length": "int"}, {}):
        changed = {**LINKS, "start->middle": dataclasses.replace(LINKS["start->middle"], columns=columns)}
        (why,) = flow.misfits({}, changed)
        assert "other columns" in why
    changed = {**LINKS, "start->end": dataclasses.replace(LINKS["start->end"], columns={})}
    assert list(flow.misfits({}, changed)) == [], "nothing is in flight in there"


def test_gc_keeps_what_is_in_flight_and_no_more() -> None:
    rows = region_of([("unaligned", 0), ("unaligned", 0)]).rows
    history = RegionHistory.from_rows(rows)
    kept = files_within_horizon(history, rows, horizon=100, withdrawn_since=rows[0].recorded_at)
    assert kept["channels/app/start"] == {"_staged/1-a/b-1.parquet", "_staged/1-a/b-2.parquet"}
    done = [*rows, row(RowKind.PROGRESS, 3, manifest=EMPTY)]
    assert "channels/app/start" not in files_within_horizon(
        RegionHistory.from_rows(done), done, horizon=100, withdrawn_since=rows[0].recorded_at
    )


def test_a_table_is_reached_as_far_as_its_stage_is() -> None:
    flow = Flow(
        through={"start": 9, "middle": 5, "end": 3}, operators={n: tuple(o) for n, o in STAGES.items()},
        channels={"start->end": (batch(4, 9),)},
    )  # fmt: skip
    assert (flow.reached("count"), flow.reached("sink"), flow.reached("files")) == (5, 3, 3)
    assert dataclasses.replace(flow, channels={}).reached("sink") is None


def test_a_batch_keeps_its_half() -> None:
    taken = dataclasses.replace(batch(1, 3), half=Half.INPUT)
    assert InFlight.from_json(taken.to_json()) == taken
    assert taken.up_to(2) == dataclasses.replace(taken, last_id=2)
    assert taken.up_to(0) is None


def test_rows_of_one_stage_are_as_they_were() -> None:
    assert all(found.format_version == PLAIN_FORMAT for found in group(1, [1]))
