"""Files in a bucket: scanned, copied, processed, replayed; the tables equal those of a folder (I2–I5, D13–D17, Z5)."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import canary
import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy
from harness import opened, rows, run_once, settle, sinks
from integration.dagster_scene import definitions, execute, instance_at, write_application
from integration.test_dagster_sensor import Ticker
from waiting import SOON, eventually

import drainmark as dm
from drainmark.jobs.errors import Halted, InputChanged, RewindRefused, StoreRefused, StoreUnavailable
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.triggers import VERSION, TriggerStatus
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.runtime.input.inbox import GroupInbox
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = [pytest.mark.usefixtures("s3_credentials"), pytest.mark.spark]

REGION = "word_count/lines"
TABLE = "word_counts"
FILES = {
    "a.txt": "one two two", "b.txt": "two three", "c d.txt": "three Three", "_x[1]{2}.txt": "four", "e%41ü.txt": "",
}  # fmt: skip


class Bucket:
    """A new bucket with the prefix `in/`."""

    def __init__(self, endpoint: str) -> None:
        self.name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.address = f"s3://{self.name}"
        self.store = ObjectStore(endpoint)
        self.store.connection.client.create_bucket(Bucket=self.name)
        self.uri = f"{self.address}/in"

    def put(self, name: str, text: str) -> str:
        self.store.put(self.address, f"in/{name}", text.encode())
        return f"{self.uri}/{name}"

    def keep_versions(self) -> None:
        self.store.connection.client.put_bucket_versioning(
            Bucket=self.name, VersioningConfiguration={"Status": "Enabled"}
        )

    def delete(self, *names: str) -> None:
        self.store.delete(self.address, [f"in/{name}" for name in names])


@pytest.fixture
def bucket(s3_server: str) -> Bucket:
    return Bucket(s3_server)


@pytest.fixture
def place(tmp_path: Path, engine: SparkEngine, s3_server: str) -> Iterator[Callable[..., Workplace]]:
    """Yield a function that makes a home of its own, which reaches the server, or a proxy in front of it."""
    made: list[Workplace] = []

    def make(name: str = "home", *, proxy: FaultProxy | None = None, **settings: Any) -> Workplace:
        values = {"s3_endpoint_url": s3_server, **settings}
        workplace = Workplace(Settings(home=tmp_path / name, project_root=tmp_path, **values))
        workplace.use_engine(engine)
        if proxy is not None:
            impatient = ObjectStore(proxy.url, patience=Patience(10, 10, retries=0))
            workplace.inputs = Inputs(impatient)
        made.append(workplace)
        return workplace

    yield make
    for workplace in made:
        workplace.registry.close()


def word_count(bucket: Bucket, **scan: Any) -> Opened:
    """Open word count on a bucket, with changes to its scan."""
    found = open_application("word_count", inputs=[bucket.uri])
    operators = [
        replace(operator, scan=replace(operator.scan, **scan)) if isinstance(operator, DirectorySource) else operator
        for operator in found.application.operators
    ]
    return replace(found, plan=compile_application(replace(found.application, operators=tuple(operators))))


def statuses(place: Workplace, uri: str) -> list[TriggerStatus]:
    return [trigger.status for trigger in place.registry.triggers.by_uri(REGION, uri)]


def counted(place: Workplace) -> dict[str, int]:
    return {row["word"]: row["count"] for row in rows(place, REGION, TABLE)}


def spooled(place: Workplace) -> list[Path]:
    return [path for path in (place.home / "inbox").rglob("*") if path.is_file()]


# --- the same as from a folder ------------------------------------------------------------------------------------


def test_a_bucket_gives_the_tables_that_a_folder_gives(
    place: Callable[..., Workplace], bucket: Bucket, tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    """Odd keys and an empty object count; folder markers and keys below them do not; the spool is emptied."""
    for name, text in FILES.items():
        bucket.put(name, text)
        write(name, text)
    bucket.put("", "")
    bucket.put("sub/below.txt", "five")
    settle(tmp_path / "inbox")
    local, remote = place("local"), place("remote")
    run_once(local, opened("word_count", tmp_path / "inbox"))
    reports = run_once(remote, word_count(bucket))
    assert [report.triggers for report in reports] == [len(FILES)]
    assert sinks(remote, REGION, [TABLE], ids=True) == sinks(local, REGION, [TABLE], ids=True)
    history = remote.history(REGION)
    assert [row.trigger_uri for row in history.states.values()] == [f"{bucket.uri}/{name}" for name in sorted(FILES)]
    assert not spooled(remote)
    assert not scan_region(remote, word_count(bucket).region()).new


def test_a_gzip_object_is_read_as_such(place: Callable[..., Workplace], bucket: Bucket) -> None:
    bucket.store.put(bucket.address, "in/a.txt.gz", gzip.compress(b"one two"))
    home = place()
    run_once(home, word_count(bucket, pattern="*.gz"))
    assert counted(home) == {"one": 1, "two": 1}


def test_a_scan_takes_what_the_source_says(place: Callable[..., Workplace], bucket: Bucket) -> None:
    """`recursive`, `order="mtime"`, `start_from` and `outputs` mean for keys what they mean for files."""
    for name in ("b.txt", "deep/c.txt", "a.log"):
        bucket.put(name, "x")
    time.sleep(1.1)  # the store's times are whole seconds
    bucket.put("a.txt", "x")
    home = place()

    def found(**scan: Any) -> list[str]:
        declared = replace(word_count(bucket).region().starts[0].scan, **scan)
        result = home.inputs.scan(bucket.uri, declared, {}, now=time.time())
        return [trigger.uri.removeprefix(f"{bucket.uri}/") + f" {trigger.output}".rstrip() for trigger in result.new]

    assert found() == ["a.txt", "b.txt"]
    assert found(order="mtime") == ["b.txt", "a.txt"]
    assert found(recursive=True) == ["a.txt", "b.txt", "deep/c.txt"]
    assert found(outputs={"logs": "*.log", "deep": "deep/*.txt"}) == ["a.log logs", "deep/c.txt deep"]
    assert found(start_from="2100-01-01") == []
    newest = bucket.store.head(bucket.address, "in/a.txt").modified
    assert found(start_from=dt.datetime.fromtimestamp(newest, dt.UTC).isoformat()) == ["a.txt"]


# --- objects that change or go ------------------------------------------------------------------------------------


@pytest.mark.seed("I2", "D16")
def test_an_object_replaced_before_it_is_read_is_scanned_anew(place: Callable[..., Workplace], bucket: Bucket) -> None:
    """The store refuses to get an object by an outdated etag; no attempt is counted, the others go on."""
    uri = bucket.put("a.txt", "old words")
    bucket.put("b.txt", "two")
    home, application = place(), word_count(bucket)
    scan_region(home, application.region())
    bucket.put("a.txt", "new")
    run_once(home, application, scan=False)
    assert statuses(home, uri) == [TriggerStatus.SUPERSEDED]
    assert counted(home) == {"two": 1}
    run_once(home, application)
    assert statuses(home, uri) == [TriggerStatus.SUPERSEDED, TriggerStatus.COMMITTED]
    assert counted(home) == {"two": 1, "new": 1}
    assert home.history(REGION).attempts == 0
    assert not spooled(home)


@pytest.mark.seed("I2", "D16", "N2")
def test_an_object_replaced_while_it_is_processed_counts_as_it_was_scanned(
    place: Callable[..., Workplace], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy was taken by then, so `check` has nothing to find; the next scan finds the new object."""
    uri = bucket.put("a.txt", "old words")
    home, application = place(), word_count(bucket, on_change="reprocess")
    fill = GroupInbox.fill

    def filled(inbox: GroupInbox, **options: Any) -> None:
        fill(inbox, **options)
        bucket.put("a.txt", "new")

    monkeypatch.setattr(GroupInbox, "fill", filled)
    run_once(home, application)
    monkeypatch.undo()
    assert statuses(home, uri) == [TriggerStatus.COMMITTED]
    assert counted(home) == {"old": 1, "words": 1}
    run_once(home, application)
    assert counted(home) == {"old": 1, "words": 1, "new": 1}
    assert statuses(home, uri) == [TriggerStatus.COMMITTED] * 2
    assert home.history(REGION).attempts == 0
    assert not spooled(home)


@pytest.mark.seed("I5")
@pytest.mark.parametrize("policy", ["halt", "skip"])
def test_an_object_deleted_before_it_is_read_goes_by_on_missing(
    place: Callable[..., Workplace], bucket: Bucket, policy: str
) -> None:
    gone = [bucket.put(name, "one") for name in ("a.txt", "b.txt")]
    bucket.put("c.txt", "two")
    home, application = place(), word_count(bucket, on_missing=policy)
    scan_region(home, application.region())
    bucket.delete("a.txt", "b.txt")
    if policy == "halt":
        with pytest.raises(Halted):
            run_once(home, application, scan=False)
        assert (home.history(REGION).halt or pytest.fail("not halted")).detail["trigger"] == gone[0]
        return
    run_once(home, application, scan=False)
    assert [statuses(home, uri) for uri in gone] == [[TriggerStatus.MISSING]] * 2
    assert counted(home) == {"two": 1}


@pytest.mark.seed("I4")
@pytest.mark.parametrize("policy", ["halt", pytest.param("ignore", marks=pytest.mark.slow), "reprocess"])
def test_an_object_changed_after_its_commit_goes_by_on_change(
    place: Callable[..., Workplace], bucket: Bucket, policy: str
) -> None:
    """The same bytes put again are the same object."""
    bucket.put("a.txt", "one")
    home, application = place(), word_count(bucket, on_change=policy)
    run_once(home, application)
    bucket.put("a.txt", "one")
    assert not scan_region(home, application.region()).changed
    bucket.put("a.txt", "two")
    if policy == "halt":
        with pytest.raises(InputChanged):
            scan_region(home, application.region())
        return
    run_once(home, application)
    assert counted(home) == ({"one": 1} if policy == "ignore" else {"one": 1, "two": 1})


# --- rewind -------------------------------------------------------------------------------------------------------


def test_objects_are_replayed_and_what_is_lost_is_listed(place: Callable[..., Workplace], bucket: Bucket) -> None:
    """A rewind replays the same objects; its plan names the objects that are gone or changed."""
    uris = [bucket.put(name, text) for name, text in (("a.txt", "one"), ("b.txt", "two two"), ("c.txt", "three"))]
    home, application = place(), word_count(bucket)
    run_once(home, application)
    first = counted(home)
    plan = plan_reset(home, REGION, RewindTarget(to=1))
    assert (plan.pending, plan.gone, plan.changed) == (tuple(uris[1:]), (), ())
    reset(home, plan)
    assert counted(home) == {"one": 1}
    run_once(home, application)
    assert counted(home) == first
    assert not spooled(home)
    bucket.delete("b.txt")
    bucket.put("c.txt", "other")
    plan = plan_reset(home, REGION, RewindTarget(to_initial=True))
    assert (plan.gone, plan.changed) == ((uris[1],), (uris[2],))
    with pytest.raises(RewindRefused):
        reset(home, plan)
    reset(home, plan, accept_loss=True)
    run_once(home, application)
    assert counted(home) == {"one": 1, "other": 1}


def test_a_bucket_that_keeps_versions_replays_what_was_overwritten(
    place: Callable[..., Workplace], bucket: Bucket
) -> None:
    """The scanned version is read, even if it was overwritten since; only a deleted version is lost."""
    bucket.keep_versions()
    first, second = bucket.put("a.txt", "one"), bucket.put("b.txt", "two")
    home, application = place(), word_count(bucket)
    scan_region(home, application.region())
    bucket.put("a.txt", "other")
    run_once(home, application, scan=False)
    assert counted(home) == {"one": 1, "two": 1}
    bucket.delete("b.txt")
    plan = plan_reset(home, REGION, RewindTarget(to_initial=True))
    assert (plan.pending, plan.gone, plan.changed) == ((first, second), (), ())
    reset(home, plan)
    run_once(home, application, scan=False)
    assert counted(home) == {"one": 1, "two": 1}
    (trigger,) = home.registry.triggers.by_uri(REGION, first)
    bucket.store.connection.client.delete_object(
        Bucket=bucket.name, Key="in/a.txt", VersionId=trigger.identity[VERSION]
    )
    assert plan_reset(home, REGION, RewindTarget(to_initial=True)).gone == (first,)


# --- a store that fails -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.seed("D15")
def test_1200_objects_are_listed_whole_or_not_at_all(
    place: Callable[..., Workplace], bucket: Bucket, s3_server: str
) -> None:
    names = [f"{number:04d}.txt" for number in range(1200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: bucket.put(name, name), names))
    region = word_count(bucket).region()
    with fault_proxy(s3_server) as proxy:
        home = place(proxy=proxy)
        for fault in ("503", "truncated page", "timeout"):
            proxy.choose = lambda method, path, before, fault=fault: fault if "start-after" in path else None
            with pytest.raises(StoreUnavailable):
                scan_region(home, region)
            assert home.registry.pending_count(REGION) == 0
        proxy.choose = lambda method, path, before: None
        found = scan_region(home, region)
    assert [trigger.uri for trigger in found.new] == [f"{bucket.uri}/{name}" for name in names]
    assert home.registry.pending_count(REGION) == 1200


@pytest.mark.seed("D13", "T4")
@pytest.mark.seed("D17")
@pytest.mark.parametrize(
    "fault",
    ["short body", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("403", "500", "503", "timeout"))],
)
def test_a_store_that_does_not_answer_costs_no_attempt(
    place: Callable[..., Workplace], bucket: Bucket, s3_server: str, fault: Fault
) -> None:
    """The 403 means that the credentials expired during the work."""
    bucket.put("a.txt", "one " * 500)
    application = word_count(bucket)
    with fault_proxy(s3_server) as proxy:
        home = place(proxy=proxy)
        proxy.error = ("ExpiredToken" if fault == "403" else "InternalError", "no")
        scan_region(home, application.region())
        proxy.choose = lambda method, path, before: fault if method == "GET" else None
        with pytest.raises(StoreUnavailable):
            run_once(home, application, scan=False)
        assert home.history(REGION).attempts == 0
        assert home.history(REGION).last_outcome is Outcome.INTERRUPTED
        assert not spooled(home)
        proxy.choose = lambda method, path, before: None
        run_once(home, application, scan=False)
    assert counted(home) == {"one": 500}


def test_a_missing_permission_halts_at_once(place: Callable[..., Workplace], bucket: Bucket, s3_server: str) -> None:
    """A retry cannot help; the error names the permission that is missing."""
    bucket.put("a.txt", "one")
    application = word_count(bucket)
    with fault_proxy(s3_server) as proxy:
        home = place(proxy=proxy)
        scan_region(home, application.region())
        proxy.error = ("AccessDenied", "no")
        proxy.choose = lambda method, path, before: "403" if method == "GET" else None
        with pytest.raises(Halted):
            run_once(home, application, scan=False)
    error = home.history(REGION).last_error
    assert error is not None
    assert error["id"] == StoreRefused.id
    assert "s3:GetObject" in error["remedy"]


# --- copies of objects -------------------------------------------------------------------------------------------


_FETCHING = """
import sys
from pathlib import Path
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
home = Workplace(Settings(home=Path(sys.argv[1]), project_root=Path(sys.argv[1]), s3_endpoint_url=sys.argv[2],
                          lease_seconds=1.0, heartbeat_seconds=0.2))
from drainmark.orchestration.runs.region_runs import region_owner
owner = region_owner(home, "word_count/lines")
owner.claim()
inbox = home.store("word_count/lines").inbox(owner.epoch, "attempt")
inbox.mkdir(parents=True)
wanted = home.registry.triggers.pending("word_count/lines", 2)
home.inputs.place([(trigger, inbox / str(number)) for number, trigger in enumerate(wanted)])
"""


@pytest.mark.slow
def test_a_kill_in_a_fetch_leaves_no_copies_for_long(
    place: Callable[..., Workplace], bucket: Bucket, s3_server: str
) -> None:
    """SIGKILL while one object is fetched and the next one hangs: the next claim removes the copy."""
    bucket.put("a.txt", "one")
    bucket.put("b.txt", "two")
    home, application = place(lease_seconds=1.0, heartbeat_seconds=0.2), word_count(bucket)
    scan_region(home, application.region())
    hangs, killed = threading.Event(), threading.Event()

    def hang(method: str, path: str, before: int) -> None:
        if method == "GET" and path.endswith("b.txt"):
            hangs.set()
            assert killed.wait(SOON)

    with fault_proxy(s3_server) as proxy:
        proxy.choose = hang
        child = subprocess.Popen([sys.executable, "-c", _FETCHING, str(home.home), proxy.url])
        try:
            assert hangs.wait(SOON)
            eventually(lambda: [path for path in spooled(home) if path.stat().st_size], "a spooled file")
        finally:
            child.kill()
            child.wait()
            killed.set()
        assert [path.name for path in spooled(home) if path.stat().st_size] == ["0"]
    time.sleep(1.2)  # the lease expires
    run_once(home, application)
    assert counted(home) == {"one": 1, "two": 1}
    assert not spooled(home)


# --- the command line ---------------------------------------------------------------------------------------------


def test_the_command_line_takes_addresses(
    place: Callable[..., Workplace], bucket: Bucket, s3_server: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`scan`, `backfill` and `run` take a bucket: a glob, a folder and a key; each object is taken once."""
    monkeypatch.setenv("DRAINMARK_S3_ENDPOINT_URL", s3_server)
    home = place()
    assert home.engine.session is not None  # the command line's own engine finds this session
    for name in ("a.txt", "old/b.txt", "old/deep/c.txt", "old/d.csv"):
        bucket.put(name, "one")

    def call(*arguments: str, code: int = 0) -> Any:
        assert invoke([*arguments, "--home", str(home.home), "--json"]) == code
        return json.loads(capsys.readouterr().out or "null")

    (scanned,) = call("scan", "word_count", "--input", bucket.uri)
    assert (scanned["folder"], scanned["new"]) == (bucket.uri, 1)
    queued = call("backfill", "word_count", "--input", f"{bucket.uri}/old/*.txt")
    assert queued["files"] == [f"{bucket.uri}/old/b.txt"]
    queued = call("backfill", "word_count", "--input", f"{bucket.uri}/**/*.txt")
    assert (queued["matched"], queued["pending"]) == (3, 2)
    assert queued["files"] == [f"{bucket.uri}/old/deep/c.txt"]
    assert call("backfill", "word_count", "--input", f"{bucket.uri}/old")["files"] == [f"{bucket.uri}/old/d.csv"]
    assert call("backfill", "word_count", "--input", f"{bucket.uri}/a.txt")["pending"] == 1
    call("backfill", "word_count", "--input", f"{bucket.uri}/nothing", code=2)
    call("run", "word_count", "--input", bucket.uri)
    assert counted(home) == {"one": 4}
    call("scan", "word_count", "--input", f"s3://{canary.ACCESS_KEY}:{canary.SECRET}@{bucket.name}/in", code=2)
    assert canary.SECRET not in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", ["s3://", "s3://key:word@bucket/in", "gs://key:word@bucket/in", "az://a@b/in", "s3a://bucket/in"]
)
def test_other_addresses_are_refused_when_declared(path: str) -> None:
    problems = list(dm.DirectoryScan(path=path).problems())
    assert [rule for rule, _, _ in problems] == ["PATH"]
    assert "word" not in str(problems)


def test_a_sensor_requests_a_run_for_a_new_object(
    place: Callable[..., Workplace], bucket: Bucket, tmp_path: Path
) -> None:
    """A tick lists the prefix; the next tick has nothing more to request."""
    with instance_at(tmp_path / "home" / "dagster") as instance:
        path = write_application(tmp_path)
        path.write_text(path.read_text().replace('path="inbox"', f'path="{bucket.uri}"'))
        ticker = Ticker(definitions(place(), path), instance)
        assert "nothing" in ticker.reason()
        bucket.put("a.csv", "a,1\n")
        (request,) = ticker().run_requests
        ticker.queue([request])
        assert ticker.reason()


# --- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("Z5")
def test_credentials_are_found_nowhere(
    place: Callable[..., Workplace], bucket: Bucket, s3_server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run in Dagster succeeds and one fails, on a store that sends the credentials back: they are not in the home
    (registry, tables, Dagster's own databases, logs), in the printed or logged output, or in the run's events."""
    bucket.put("a.csv", "a,1\n")
    with fault_proxy(s3_server) as proxy, instance_at(tmp_path / "home" / "dagster") as instance:
        home = place(proxy=proxy)
        path = write_application(tmp_path)
        path.write_text(path.read_text().replace('path="inbox"', f'path="{bucket.uri}"'))
        repository = definitions(home, path)
        assert execute(repository, instance).success
        proxy.error = ("InternalError", " ".join(canary.ALL))
        for where in ("list-type", "b.csv"):
            bucket.put("b.csv", "b,2\n")
            proxy.choose = lambda method, path, before, where=where: "500" if where in path else None
            failed = execute(repository, instance)
            assert not failed.success
            assert "STORE_UNAVAILABLE" in str(failed.all_events) or "***" in str(failed.all_events)
        shown = str([record for run in instance.get_runs() for record in instance.all_logs(run.run_id)])
    captured = capfd.readouterr()
    shown += captured.out + captured.err + repr(home.settings)
    assert "***" in shown
    assert not [secret for secret in canary.ALL if secret in shown]
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not [path for path, content in written.items() if any(secret.encode() in content for secret in canary.ALL)]
