"""OpenLineage events leave without holding up a region: what a receiver that was away lacks, a later owner tells."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import HandFed
from event_receiver import EventReceiver, receiver
from waiting import SOON, eventually

from drainmark.jobs.errors import Fenced, UsageError
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.manifest import Manifest
from drainmark.jobs.protocol.records.triggers import KIND, PERIOD, SLICES
from drainmark.orchestration.exporters import event_sender, lineage, row_events
from drainmark.orchestration.exporters.datasets import Dataset, place_of
from drainmark.orchestration.exporters.event_sender import Busy, EventRefused, EventSender, Position, direct_session
from drainmark.orchestration.exporters.known_lineage import KnownLineage, Origin, Output, read_lineage, write_lineage
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.settings import Settings

__all__ = ["receiver"]


@pytest.fixture
def fed(tmp_path: Path, receiver: EventReceiver) -> Iterator[HandFed]:
    """Yield a region of three files, whose home names the receiver."""
    settings = Settings(home=tmp_path / "home", project_root=tmp_path, openlineage_url=receiver.url)
    fed = HandFed(Workplace(settings), tmp_path / "inbox")
    for number in (1, 2, 3):
        fed.write(f"{number}.txt", ["a", "b"][: number % 2 + 1])
    fed.add("1.txt", "2.txt", "3.txt")
    table = fed.tables[0]
    columns = {"value": [Origin("read", "line", "IDENTITY")]}
    output = Output(dataset=place_of(f"{fed.workplace.home}/lake/kept", ""), table=table, columns=columns)
    known = KnownLineage(inputs={"read": Dataset("file", "/in")}, starts=["read"], outputs=[output])
    write_lineage(settings.home, fed.region, known)
    yield fed
    fed.workplace.registry.close()


def process(fed: HandFed, owner: Any, first: int, last: int) -> None:
    """Process a group, and report what a run reports."""
    owner.report("begin", {"first_id": first, "last_id": last})
    fed.process(last - first + 1)
    owner.report("group", {"first_id": first, "last_id": last, "versions": dict(owner.versions)})


def own(fed: HandFed, *numbers: int) -> None:
    """Process groups of one file under one claim; an owner without any tells what was left untold."""
    with fed.owning() as owner:
        for number in numbers:
            process(fed, owner, number, number)


def ids(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    told = [event["run"]["facets"]["drainmark_group"] for event in events]
    return [(each["firstSequenceId"], each["lastSequenceId"]) for each in told]


def test_expectations_are_told_with_an_input_that_the_group_read() -> None:
    """A start of a period may have nothing new."""
    known = KnownLineage(inputs={name: Dataset("file", f"/{name}") for name in "ab"}, starts=["a", "b"])
    nothing = Slice(start={"at": 3}, end={"at": 3}, size_bytes=0)
    new = Slice(start={"at": 1}, end={"at": 2}, size_bytes=10)
    for taken, read in (((nothing, new), "/b"), ((new, nothing), "/a"), ((new, new), "/a")):
        identity = {KIND: PERIOD, SLICES: dict(zip("ab", (each.to_json() for each in taken), strict=True))}
        row = cast(CheckpointRow, SimpleNamespace(trigger_kind=PERIOD, trigger_identity=identity, rows_in=2))
        found = list(row_events._reads(known, [row], Manifest(files={}), {"paid": ("amount > 0", 1)}))
        assert [each.dataset.name for each in found if each.unmet] == [read]


def test_a_group_begins_and_completes_under_one_id(fed: HandFed, receiver: EventReceiver) -> None:
    with fed.owning() as owner:
        process(fed, owner, 1, 2)
        process(fed, owner, 3, 3)
    starts, ends = receiver.of("START"), receiver.of("COMPLETE")
    assert ids(starts) == ids(ends) == [(1, 2), (3, 3)]
    assert [each["run"]["runId"] for each in starts] == [each["run"]["runId"] for each in ends]
    assert len({each["run"]["runId"] for each in ends}) == 2
    assert {(each["job"]["namespace"], each["job"]["name"]) for each in receiver.events} == {
        ("drainmark", "by_hand/files")
    }
    (read,), (wrote,) = ends[0]["inputs"], ends[0]["outputs"]
    assert (read["namespace"], read["name"]) == ("file", "/in")
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 3
    locations = read["inputFacets"]["subset"]["inputCondition"]["locations"]
    assert [Path(uri).name for uri in locations] == ["1.txt", "2.txt"]
    assert wrote["name"] == str(fed.workplace.home / "lake" / "kept")
    assert wrote["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert [field["name"] for field in wrote["facets"]["schema"]["fields"]] == ["value", "_sequence_id"]
    (origin,) = wrote["facets"]["columnLineage"]["fields"]["value"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == ("file", "/in", "line")
    versions = [each["outputs"][0]["facets"]["version"]["datasetVersion"] for each in ends]
    assert len(set(versions)) == 2
    assert read["facets"]["version"] != ends[1]["inputs"][0]["facets"]["version"]


def test_what_an_owner_that_died_did_not_tell_the_next_one_tells_as_it_would_have_been(
    fed: HandFed, receiver: EventReceiver
) -> None:
    fed.crash_after(2)  # it reports no step, as a process that is killed after its commit
    assert receiver.of("COMPLETE") == []
    fed.drain()
    ends = receiver.of("COMPLETE")
    assert ids(ends) == [(1, 1), (2, 2), (3, 3)]
    fed.workplace.registry.save_cursor(fed.region, lineage.CURSOR, "0")
    own(fed)
    again = receiver.of("COMPLETE")[len(ends) :]
    assert [each["run"]["runId"] for each in again] == [each["run"]["runId"] for each in ends]
    assert [each["eventTime"] for each in again] == [each["eventTime"] for each in ends]
    own(fed)
    assert len(receiver.of("COMPLETE")) == 2 * len(ends), "what is taken is not told again"


def test_a_rewind_tells_what_it_withdraws(fed: HandFed, receiver: EventReceiver) -> None:
    own(fed, 1, 2, 3)
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=2)))
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    first, second = (each["run"]["facets"]["drainmark_rewind"] for each in receiver.of("COMPLETE", ".rewind"))
    assert (first["to"], first["withdrawn"], first["tables"]) == (2, [[3, 3]], ["lake/kept"])
    assert (second["to"], second["withdrawn"]) == (1, [[2, 2]]), "3 is gone already"
    (event, _) = receiver.of("COMPLETE", ".rewind")
    assert [each["name"] for each in event["outputs"]] == [str(fed.workplace.home / "lake" / "kept")]


def test_states_from_before_the_setting_are_no_news(fed: HandFed, receiver: EventReceiver) -> None:
    told = fed.workplace.settings
    fed.workplace.settings = told.model_copy(update={"openlineage_url": ""})
    fed.drain(3)
    assert receiver.asked == 0
    fed.workplace.settings = told
    fed.write("4.txt", ["c"])
    fed.add("4.txt")
    fed.drain()
    assert [last for _, last in ids(receiver.of("COMPLETE"))] == [fed.history().committed_id]


def test_a_receiver_that_is_away_is_told_by_the_next_owner_and_the_log_says_it_once(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refuses = 503
    own(fed, 1, 2, 3)
    assert receiver.asked == 1, "the others do not wait for it, too"
    (told,) = [each for each in caplog.messages if "OpenLineage" in each]
    assert "3 are lost" in told, "the starts"
    assert "503" in told
    assert "above id 0" in told
    receiver.refuses = 200
    own(fed)
    assert ids(receiver.events) == [(1, 1), (2, 2), (3, 3)]


def test_nobody_waits_for_a_receiver_that_hangs(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.hangs.clear()
    with monkeypatch.context() as impatient:
        impatient.setattr(lineage, "END_SECONDS", 0.1)
        own(fed, 1, 2, 3)
    assert fed.history().committed_id == 3
    assert any("no answer within 0.1 s" in each for each in caplog.messages)
    receiver.hangs.set()
    own(fed)
    assert ids(receiver.of("COMPLETE")) == [(1, 1), (2, 2), (3, 3)]


def test_more_than_the_queue_takes_is_left_for_the_next_owner_and_the_log_says_so(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed.crash_after(3)
    receiver.hangs.clear()
    flush = EventSender.flush

    def flushed(sender: EventSender, seconds: float) -> None:
        receiver.hangs.set()
        flush(sender, seconds)

    with monkeypatch.context() as small:
        small.setattr(event_sender, "MOST_WAITING", 1)
        small.setattr(EventSender, "flush", flushed)
        own(fed)
    told = len(receiver.of("COMPLETE"))
    assert told < 3
    assert any(f"what is above id {told} is sent by the next run" in each for each in caplog.messages)
    own(fed)
    assert ids(receiver.of("COMPLETE")) == [(1, 1), (2, 2), (3, 3)]


def test_an_event_that_the_receiver_never_takes_holds_up_no_others(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refuses = 422
    own(fed, 1)
    assert receiver.asked == 2
    assert any("2 are lost, with those of ids 1 (" in each for each in caplog.messages)
    receiver.refuses = 200
    own(fed, 2)
    assert ids(receiver.of("COMPLETE")) == [(2, 2)]


def poisoned(receiver: EventReceiver) -> None:
    """Let a receiver fail at the event of group 1, and only at this."""
    receiver.refuses, receiver.says = 500, "no room for \x1b[2J this"
    receiver.refuses_if = lambda body: b'"COMPLETE"' in body and b'"firstSequenceId": 1,' in body


def test_an_event_at_which_the_receiver_always_fails_is_left_out_after_some_tries_and_is_named(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short runs, as of a sensor: each tries it once, and the registry has the count."""
    monkeypatch.setattr(event_sender, "GIVE_UP_SECONDS", 0.0)
    poisoned(receiver)
    for number in (1, 2, 3):
        assert receiver.of("COMPLETE") == [], f"before group {number} there is hope"
        own(fed, number)
    assert ids(receiver.of("START")) == [(1, 1), (2, 2), (3, 3)], "what the receiver takes is not held up"
    assert ids(receiver.of("COMPLETE")) == [(2, 2), (3, 3)]
    (named,) = [each for each in caplog.messages if "event of id 1 is left out" in each]
    assert "500 Internal Server Error: no room for \\x1b[2J this" in named
    assert f"drainmark history {fed.region}" in named
    assert any("1 are lost, with those of ids 1 (" in each for each in caplog.messages)
    own(fed)
    assert len(receiver.of("COMPLETE")) == 2, "it is over"


def test_before_its_time_is_over_an_event_is_not_left_out_and_comes_when_the_receiver_is_mended(
    fed: HandFed, receiver: EventReceiver
) -> None:
    poisoned(receiver)
    for number in (1, 2, 3):
        own(fed, number)
    for _ in range(2 * event_sender.MOST_TRIES):
        own(fed)
    assert receiver.of("COMPLETE") == []
    receiver.refuses = 200
    own(fed)
    assert ids(receiver.of("COMPLETE")) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_receiver_that_takes_nothing_gets_all_when_it_is_back(
    fed: HandFed, receiver: EventReceiver, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(event_sender, "GIVE_UP_SECONDS", 0.0)
    receiver.refuses = status
    for number in (1, 2, 3):
        own(fed, number)
    for _ in range(2 * event_sender.MOST_TRIES):
        own(fed)
    receiver.refuses = 200
    own(fed)
    assert ids(receiver.events) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("status", [429, 503])
def test_patience_that_is_asked_for_never_ends(
    fed: HandFed, receiver: EventReceiver, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Even if it is asked for one event only."""
    monkeypatch.setattr(event_sender, "GIVE_UP_SECONDS", 0.0)
    poisoned(receiver)
    receiver.refuses, receiver.patience = status, "0"
    for number in (1, 2, 3):
        own(fed, number)
    with fed.owning() as owner:
        for _ in range(2 * event_sender.MOST_TRIES):
            owner.report("begin", {"first_id": 9, "last_id": 9})
    assert receiver.of("COMPLETE") == []
    receiver.refuses = 200
    own(fed)
    assert ids(receiver.of("COMPLETE")) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        *[("120", 120.0), ("0", 0.0), ("soon", 0.0), ("", 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
        *[(told, event_sender.PATIENCE_SECONDS) for told in ("31536000", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT")],
    ],
)
def test_a_receiver_that_names_its_patience_gets_it_up_to_a_bound(
    receiver: EventReceiver, told: str, seconds: float
) -> None:
    receiver.refuses, receiver.patience = 503, told
    with pytest.raises(Busy) as caught:
        direct_session().post(receiver.url, data=b"{}")
    assert caught.value.seconds == seconds


def test_nothing_is_sent_while_a_receiver_wants_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(event_sender, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sent: list[float] = []

    def send(event: object) -> None:
        sent.append(now[0])
        raise Busy("later", 120.0)

    sender = EventSender(send=send)
    for moment in (0.0, 119.0, 121.0):
        now[0] = moment
        sender.put(lambda: None)
        sender.flush(SOON)
    assert sent == [0.0, 121.0]


def test_an_event_on_which_the_receiver_hangs_is_left_out_while_others_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_sender, "REST_SECONDS", 0.0)
    monkeypatch.setattr(event_sender, "GIVE_UP_SECONDS", 0.0)
    left: list[int] = []
    sent: list[object] = []

    def send(event: object) -> None:
        if event == 1:
            raise TimeoutError
        sent.append(event)

    sender = EventSender(send=send, left_out=lambda number, why: left.append(number))
    for attempt in range(event_sender.MOST_TRIES):
        assert left == [], attempt
        sender.put(lambda: "start")
        sender.put_numbered(lambda: 1, 1, after=0)
        sender.flush(SOON)
    assert left == [1]
    sender.put_numbered(lambda: 2, 2, after=1)
    sender.flush(SOON)
    assert (sent[-1], sender.position) == (2, Position(2))


def test_a_deposed_owner_moves_the_cursor_no_more(
    fed: HandFed, receiver: EventReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run tells again what the new owner told."""

    def cursor() -> str | None:
        return fed.workplace.registry.load_cursor(fed.region, lineage.CURSOR)

    monkeypatch.setattr(lineage, "_SAVE_SECONDS", 3600.0)
    owning = fed.owning()
    deposed = owning.__enter__()
    process(fed, deposed, 1, 1)
    eventually(lambda: receiver.of("COMPLETE"), "the event of group 1")
    assert cursor() == "0", "it is noted now and then"
    deposed.outside.lease.release(clean=False)  # as if its process stood still
    other = HandFed(fed.workplace, fed.inbox)
    with other.owning() as owner:
        process(other, owner, 2, 3)
    assert cursor() == "3"
    monkeypatch.setattr(lineage, "_SAVE_SECONDS", 0.0)
    deposed.report("group", {"first_id": 1, "last_id": 1})
    assert cursor() == "3"
    asked = receiver.asked
    deposed.report("begin", {"first_id": 4, "last_id": 4})
    deposed.report("failed", {"error": "boom"})
    with pytest.raises(Fenced):
        owning.__exit__(None, None, None)
    own(fed)
    assert receiver.asked == asked, "it knows that it is deposed, and nobody tells a group again"


def test_of_a_large_backlog_a_group_reads_a_bounded_part(
    fed: HandFed, receiver: EventReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each group of a region pays for all that a receiver that is slow was not told."""
    monkeypatch.setattr(lineage, "IDS_AT_ONCE", 4)
    monkeypatch.setattr(event_sender, "MOST_WAITING", 8)
    names = [f"{number}.txt" for number in range(4, 19)]
    for name in names:
        fed.write(name, ["a"])
    fed.add(*names)
    fed.crash_after(12)
    read: list[int] = []
    rows = CheckpointTable.rows

    def counted(table: CheckpointTable, since: int = 0, through: int | None = None) -> Any:
        found = rows(table, since, through)
        if through is not None:
            read.append(len({row.sequence_id for row in found}))
        return found

    monkeypatch.setattr(CheckpointTable, "rows", counted)
    receiver.hangs.clear()
    with monkeypatch.context() as impatient:
        impatient.setattr(lineage, "END_SECONDS", 0.1)
        with fed.owning() as owner:
            for number in range(13, 19):
                process(fed, owner, number, number)
    assert read, "the first rows are read"
    assert len(read) < 6, "and none while enough wait"
    receiver.hangs.set()
    for _ in range(8):
        own(fed)
    assert max(read) <= 4
    told = ids(receiver.of("COMPLETE"))
    assert list(dict.fromkeys(told)) == [(number, number) for number in range(1, 19)]


def test_a_group_of_very_many_files_is_told_as_one(
    fed: HandFed, receiver: EventReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "IDS_AT_ONCE", 1)
    with fed.owning() as owner:
        process(fed, owner, 1, 3)
    assert ids(receiver.of("COMPLETE")) == [(1, 3)]


def test_groups_that_fail_and_attempts_without_a_group(fed: HandFed, receiver: EventReceiver) -> None:
    with fed.owning() as owner:
        owner.report("begin", {"first_id": 1, "last_id": 2})
        owner.report("failed", {"error": "boom", "triggers": 2, "decision": "SplitGroup"})
        owner.report("begin", {"first_id": 3, "last_id": 3})
    (failed,), (left,) = receiver.of("FAIL"), receiver.of("ABORT")
    assert (ids([failed]), failed["run"]["facets"]["errorMessage"]["message"]) == ([(1, 2)], "boom")
    assert ids([left]) == [(3, 3)]
    interventions.halt(fed.workplace, fed.region, "stock-taking")
    assert len(receiver.of("FAIL")) == 1, "an operator's halt is no failure"
    interventions.resume(fed.workplace, fed.region, "")
    with fed.owning() as owner:
        owner.halts.halt("disk", trigger=None, operator=None, error=None)
    assert receiver.of("FAIL")[-1]["run"]["facets"]["errorMessage"]["message"] == "disk"


def test_groups_that_one_commit_joins_all_end(fed: HandFed, receiver: EventReceiver) -> None:
    with fed.owning() as owner:
        owner.report("begin", {"first_id": 1, "last_id": 1})
        owner.report("begin", {"first_id": 2, "last_id": 3})
        fed.process(3)
        owner.report("group", {"first_id": 1, "last_id": 3, "versions": {}})
    starts, ends = receiver.of("START"), receiver.of("COMPLETE")
    assert {each["run"]["runId"] for each in starts} == {each["run"]["runId"] for each in ends}
    assert [len(each["outputs"]) for each in ends] == [1, 0]
    assert not receiver.of("ABORT")


def test_a_key_is_sent_and_never_shown(fed: HandFed, receiver: EventReceiver) -> None:
    settings = fed.workplace.settings.model_copy(update={"openlineage_api_key": "s3cret"})
    assert "s3cret" not in repr(settings)
    fed.workplace.settings = settings
    fed.drain()
    assert set(receiver.tokens) == {"Bearer s3cret"}


def test_an_event_after_one_that_was_dropped_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the number of the newest event would say that the receiver has the one before."""
    monkeypatch.setattr(event_sender, "REST_SECONDS", 0.0)
    sent: list[int] = []

    def send(number: int) -> None:
        if number == 2 and not sent.count(1) > 1:
            sent.append(1)
            raise OSError("away")
        if number == 4:
            raise EventRefused("never")
        sent.append(number)

    sender = EventSender(send=send)
    for number in (1, 2, 3):
        sender.put_numbered(lambda number=number: number, number, number - 1)
    sender.flush(SOON)
    assert (sender.position.taken, bool(sender.failures), sender.lost) == (1, True, 0)
    for number in (2, 3, 4, 5):
        sender.put_numbered(lambda number=number: number, number, number - 1)
    sender.flush(SOON)
    assert (sender.position.taken, sender.lost) == (5, 1)
    assert sent == [1, 1, 2, 3, 5]


def test_an_idle_thread_ends_and_the_next_event_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with many runs would keep a thread of each."""
    monkeypatch.setattr(event_sender, "IDLE_SECONDS", 0.01)
    threads: list[threading.Thread] = []
    sender = EventSender(send=lambda event: threads.append(threading.current_thread()))
    for _ in range(2):
        sender.put(lambda: None)
        sender.flush(SOON)
        threads[-1].join(SOON)
        assert not threads[-1].is_alive()
    assert threads[0] is not threads[1]


def test_what_is_known_of_the_code_is_kept_as_it_is(fed: HandFed) -> None:
    known = read_lineage(fed.workplace.home, fed.region)
    assert known.outputs[0].table == fed.tables[0]
    write_lineage(fed.workplace.home, "r", known)
    assert read_lineage(fed.workplace.home, "r") == known
    assert read_lineage(fed.workplace.home, "no/region") == KnownLineage()


def test_without_the_extra_the_remedy_is_told(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(UsageError) as caught, fed.owning():
        pass
    assert caught.value.remedy == "pip install 'drainmark[openlineage]'"


def test_without_a_receiver_a_run_imports_no_observer(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from by_hand import HandFed;"
        "from drainmark.orchestration.workplace.workplace import Workplace;"
        "from drainmark.resources.settings import Settings;"
        "root = Path(sys.argv[1]);"
        "fed = HandFed(Workplace(Settings(home=root / 'home', project_root=root)), root / 'inbox');"
        "fed.write('1.txt', ['a']); fed.add('1.txt'); fed.drain();"
        "assert fed.history().committed_id == 1;"
        "print([name for name in sys.modules if '.exporters' in name"
        " or name.partition('.')[0] in {'openlineage', 'opentelemetry'}])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("location", ["/login", ""])
def test_a_redirect_is_no_delivery(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    """Else a post goes on as a GET, as `requests` does it, and a login page would have taken the event."""
    receiver.refuses, receiver.location = 302, location
    own(fed, 1)
    assert receiver.asked == 1
    assert any(f"302: it redirects to {location!r}" in each for each in caplog.messages)
    receiver.refuses = 200
    own(fed)
    assert ids(receiver.of("COMPLETE")) == [(1, 1)]
