"""Tables in a bucket when the store misbehaves: lost replies, slow-downs, silence; and leaks of credentials.

The contracts of the checkpoint table, the fence and the tables run on both stores when the store works.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import azurite
import canary
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from fault_proxy import Fault, FaultProxy, fault_proxy
from harness import passing
from places import BUCKET, folders, remove, store_at, text_of

from drainmark.jobs.errors import (
    AccountingError,
    Fenced,
    ObjectChanged,
    ObjectMissing,
    Retry,
    StoreRefused,
    StoreUnavailable,
)
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.operators.sources.pushed.bucket_buffer import BucketBuffer
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.orchestration.doctor import machine
from drainmark.orchestration.doctor.findings import Severity
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable, regions_of
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

REGION = "shop/orders"
SCHEMA = pa.schema([("key", pa.string()), ("_sequence_id", pa.int64())])
SCHEMA_JSON = json.dumps({"type": "struct", "fields": [
    {"name": "key", "type": "string", "nullable": True, "metadata": {}},
    {"name": "_sequence_id", "type": "long", "nullable": True, "metadata": {}},
]})  # fmt: skip


def rows(*ids: int) -> pa.Table:
    return pa.table({"key": [f"k{number}" for number in ids], "_sequence_id": list(ids)}, schema=SCHEMA)


def staged(table: ManagedTable, *ids: int) -> Any:
    return Staging(table.folder, 1, uuid4().hex).write(rows(*ids), "rows")


def ids_of(table: ManagedTable) -> list[int]:
    return sorted(table.read(["_sequence_id"]).column(0).to_pylist())


def claim(epoch: int, attempt: str | None = None) -> CheckpointRow:
    return CheckpointRow(
        kind=RowKind.CLAIM, region=REGION, epoch=epoch, sequence_id=1, attempt=attempt or uuid4().hex,
        recorded_at=dt.datetime.now(dt.UTC), run_id=uuid4().hex, drainmark_version="0", graph_fingerprint="",
        params_hash="",
    )  # fmt: skip


IN_BOTH = pytest.mark.parametrize("proxy", ["s3", "azure"], indirect=True)
"""Run with an S3 server and with Azure's emulator behind the proxy; without this mark, with S3 alone."""


@pytest.fixture
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    if getattr(request, "param", "s3") == "s3":
        request.getfixturevalue("s3_place")
        with fault_proxy(request.getfixturevalue("s3_server")) as serving:
            yield serving
        return
    request.getfixturevalue("azurite_server")
    with fault_proxy(azurite.URL) as serving:
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", serving.url)
        yield serving


@pytest.fixture
def shaky(request: pytest.FixtureRequest, proxy: FaultProxy) -> BucketFolder:
    """Return the bucket behind the proxy, for clients with few retries and short timeouts."""
    patience = Patience(request_seconds=5.0, retries=1)
    if proxy.upstream == urlsplit(azurite.URL).netloc:
        return BucketFolder(ObjectStore(patience=patience), request.getfixturevalue("azure"), "tables")
    prefix = request.getfixturevalue("s3_place").prefix
    return BucketFolder(ObjectStore(proxy.url, patience=patience), BUCKET, prefix)


@pytest.fixture
def table(shaky: BucketFolder) -> ManagedTable:
    """Return a table with the ids 1 and 2."""
    table = ManagedTable(shaky / "lake" / "orders", REGION)
    table.create(SCHEMA_JSON)
    table.publish(txn_version(1, 2), staged(table, 1, 2))
    return table


def faulty(proxy: FaultProxy, fault: Fault, method: str, part: str, times: int) -> list[str]:
    """Let so many requests fail; return the list to which their paths are added."""
    met: list[str] = []

    def choose(of: str, path: str, before: int) -> Fault | None:
        if of != method or part not in path or len(met) >= times:
            return None
        met.append(path)
        return fault

    proxy.choose = choose
    return met


# --- put-if-absent ------------------------------------------------------------------------------------------------


@pytest.mark.seed("D3")
def test_the_server_of_these_tests_refuses_a_second_put(s3_place: BucketFolder) -> None:
    """Otherwise the tests of commits with this server would prove nothing."""
    client, key = s3_place.store.connection.client, f"{s3_place.prefix}/x"
    client.put_object(Bucket=BUCKET.removeprefix("s3://"), Key=key, Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=BUCKET.removeprefix("s3://"), Key=key, Body=b"2", IfNoneMatch="*")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412


@pytest.mark.seed("D3")
@canary.only_with_moto("a request without a header that was signed is refused")
def test_a_store_without_put_if_absent_gets_no_table(proxy: FaultProxy, shaky: BucketFolder) -> None:
    proxy.choose = lambda method, path, before: "unconditional"
    table = ManagedTable(shaky / "lake" / "orders", REGION)
    with pytest.raises(StoreRefused, match="If-None-Match"):
        table.create(SCHEMA_JSON)
    assert not table.exists()


@pytest.mark.seed("D3")
@canary.only_with_moto("a request without a header that was signed is refused")
def test_a_store_that_checks_first_and_writes_later_gets_no_table(proxy: FaultProxy, shaky: BucketFolder) -> None:
    """It refuses the second of two puts, and accepts several puts at once."""
    proxy.choose = lambda method, path, before: "late write" if method == "PUT" else None
    shaky.store.put(BUCKET, f"{shaky.prefix}/x", b"1", if_absent=True)
    with pytest.raises(ObjectChanged):
        shaky.store.put(BUCKET, f"{shaky.prefix}/x", b"2", if_absent=True)
    table = ManagedTable(shaky / "lake" / "orders", REGION)
    with pytest.raises(StoreRefused, match="several writers"):
        table.create(SCHEMA_JSON)
    with pytest.raises(StoreRefused, match="several writers"):
        BucketBuffer(shaky / "pushed").push([{"n": 1}])
    (found,) = machine.store(shaky)
    assert found.verdict is Severity.FAIL
    assert [entry.path for entry in shaky.everything("")] == ["x"], "no object of the races is left"


@IN_BOTH
@pytest.mark.seed("D3")
def test_writers_race_once_for_a_bucket(proxy: FaultProxy, shaky: BucketFolder) -> None:
    """Also if the reply to the winner is lost: then nobody knows that it won, and the store is no worse for it."""
    proxy.choose = lambda method, path, before: "lost reply" if method == "PUT" and not before else None
    shaky.require_put_if_absent()
    raced = len(proxy.seen)
    (shaky / "another").require_put_if_absent()
    assert len(proxy.seen) == raced


@pytest.mark.seed("D16")
@canary.only_with_moto("a request without a header that was signed is refused")
def test_doctor_tells_what_a_store_does_otherwise(proxy: FaultProxy, shaky: BucketFolder) -> None:
    assert [found.verdict for found in machine.store(shaky)] == [Severity.OK]
    proxy.choose = lambda method, path, before: "unconditional" if "habits" in path else None
    proxy.alter = lambda method, path, page: page.replace(b"%0B", b"%EF%BF%BD")
    assert [each.message.partition(": ")[2][:40] for each in machine.store(shaky)[1:]] == [
        "it ignores If-Match when it reads: Drain", "it ignores If-Match when it deletes: wit",
        "it lists control characters in keys as o",
    ]  # fmt: skip
    assert list(shaky.everything("")) == []


def test_a_folder_that_somebody_made_by_hand_takes_a_table(s3_place: BucketFolder) -> None:
    """Consoles make an empty object with the name of the folder."""
    s3_place.store.put(BUCKET, f"{s3_place.prefix}/lake/orders/", b"")
    table = ManagedTable(s3_place / "lake" / "orders", REGION)
    table.create(SCHEMA_JSON)
    assert table.is_own()


@pytest.mark.seed("H1", "D3")
def test_of_owners_that_claim_at_once_exactly_one_wins(s3_place: BucketFolder) -> None:
    folder = s3_place / "checkpoints" / REGION
    CheckpointTable(folder, REGION).create()
    outcomes: list[str] = []
    together = threading.Barrier(4)

    def race(epoch: int) -> None:
        try:
            CheckpointTable(folder, REGION).claim(claim(epoch))
            outcomes.append("won")
        except (Fenced, threading.BrokenBarrierError) as lost:
            outcomes.append(type(lost).__name__)

    for epoch in (1, 2, 3):
        outcomes.clear()
        racers = [threading.Thread(target=race, args=(epoch,)) for _ in range(4)]
        with passing(lambda point: together.wait() if "before" in point else None):
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
        assert sorted(outcomes) == ["Fenced", "Fenced", "Fenced", "won"]
        assert [row.epoch for row in CheckpointTable(folder, REGION).rows()] == list(range(1, epoch + 1))


# --- a store that misbehaves --------------------------------------------------------------------------------------


@IN_BOTH
@pytest.mark.seed("H10", "D14")
@pytest.mark.parametrize(
    "fault", ["lost reply", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("503", "timeout"))]
)
def test_a_commit_happens_once_whatever_becomes_of_its_answer(
    proxy: FaultProxy, table: ManagedTable, fault: Fault
) -> None:
    before, files = table.delta_version(), staged(table, 3)
    met = faulty(proxy, fault, "PUT", "_delta_log/", times=1)

    done = table.publish(txn_version(1, 3), files)

    assert len(met) == 1
    assert not done.done_before
    assert table.delta_version() == before + 1
    assert ids_of(table) == [1, 2, 3]
    assert table.txn_version() == txn_version(1, 3)


@IN_BOTH
@pytest.mark.seed("H10", "D14")
def test_a_claim_whose_answer_is_lost_is_found_to_be_mine(proxy: FaultProxy, shaky: BucketFolder) -> None:
    checkpoint = CheckpointTable(shaky / "checkpoints" / REGION, REGION)
    checkpoint.create()
    met = faulty(proxy, "lost reply", "PUT", "_delta_log/", times=1)
    checkpoint.claim(claim(1))
    assert len(met) == 1
    assert checkpoint.txn() == (1, 0)
    assert len(checkpoint.rows()) == 1


@IN_BOTH
@pytest.mark.seed("D14")
def test_a_staged_file_whose_answer_is_lost_is_written_under_another_name(
    proxy: FaultProxy, table: ManagedTable
) -> None:
    met = faulty(proxy, "lost reply", "PUT", "_staged/", times=1)
    (file,) = staged(table, 3)
    assert file.path.endswith("/rows-1.parquet")
    assert met[0].endswith("/rows.parquet")
    table.publish(txn_version(1, 3), [file])
    assert ids_of(table) == [1, 2, 3]


@IN_BOTH
@pytest.mark.seed("D13")
@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("PUT", "_staged/"),
        pytest.param("PUT", "_delta_log/", marks=pytest.mark.slow),
        pytest.param("HEAD", "_staged/", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_stays_away_costs_no_attempt_and_changes_nothing(
    proxy: FaultProxy, table: ManagedTable, method: str, part: str
) -> None:
    met = faulty(proxy, "503", method, part, times=1_000_000)
    with pytest.raises(StoreUnavailable) as failed:
        table.publish(txn_version(1, 3), staged(table, 3))
    assert met
    assert failed.value.retry is Retry.WAIT
    proxy.choose = lambda method, path, before: None
    assert ids_of(table) == [1, 2]
    assert table.txn_version() == txn_version(1, 2)


@IN_BOTH
@pytest.mark.seed("D13", "D15")
@pytest.mark.parametrize("fault", ["503", pytest.param("timeout", marks=pytest.mark.slow)])
def test_a_table_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(
    proxy: FaultProxy, table: ManagedTable, fault: Fault
) -> None:
    faulty(proxy, fault, "GET", "", times=1_000_000)
    for look in (table.txn_version, table.exists, table.read, lambda: table.create(SCHEMA_JSON)):
        with pytest.raises(StoreUnavailable):
            look()


@IN_BOTH
@pytest.mark.seed("H10", "D13")
def test_a_commit_that_cannot_be_read_back_waits_and_is_found_by_the_next(
    proxy: FaultProxy, table: ManagedTable
) -> None:
    files = staged(table, 3)
    landed: list[str] = []

    def choose(method: str, path: str, before: int) -> Fault | None:
        if method == "PUT" and "_delta_log/" in path:
            landed.append(path)
            return "lost reply"
        return "503" if landed and method == "GET" else None

    proxy.choose = choose
    with pytest.raises(StoreUnavailable, match="read back"):
        table.publish(txn_version(1, 3), files)
    proxy.choose = lambda method, path, before: None
    assert table.publish(txn_version(1, 3), files).done_before
    assert ids_of(table) == [1, 2, 3]


def test_a_bucket_that_is_not_there_is_refused_and_not_waited_for(s3_place: BucketFolder) -> None:
    nowhere = ManagedTable(BucketFolder(s3_place.store, f"s3://none-{uuid.uuid4().hex}", "lake/orders"), REGION)
    for use in (nowhere.txn_version, nowhere.exists, lambda: nowhere.create(SCHEMA_JSON)):
        with pytest.raises(StoreRefused) as refused:
            use()
        assert refused.value.remedy


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("H8")
def test_a_staged_file_that_is_gone_is_not_published(table: ManagedTable) -> None:
    (file,) = staged(table, 3)
    remove(table.folder, file.path)
    with pytest.raises(AccountingError, match="gone"):
        table.publish(txn_version(1, 3), [file])
    assert table.txn_version() == txn_version(1, 2)


@pytest.mark.seed("DX1")
@pytest.mark.parametrize("writer", [pytest.param("by Arrow", marks=pytest.mark.slow), "by Spark"])
def test_an_object_that_was_overwritten_by_another_of_its_size_is_not_published(
    table: ManagedTable, s3_place: BucketFolder, engine: SparkEngine, writer: str
) -> None:
    """Both files are whole, with the same number of rows: only the facts of the store about the bytes differ."""
    if writer == "by Arrow":
        (file,) = staged(table, 3)
        (other,) = staged(table, 4)
    else:
        (file, other) = (_written_by_spark(table, engine, number) for number in (3, 4))
    objects, key = s3_place.store.connection.client, f"{table.folder.uri.removeprefix(f'{BUCKET}/')}/"
    body = objects.get_object(Bucket=BUCKET.removeprefix("s3://"), Key=key + other.path)["Body"].read()
    assert len(body) == file.size
    objects.put_object(Bucket=BUCKET.removeprefix("s3://"), Key=key + file.path, Body=body)
    with pytest.raises(AccountingError) as refused:
        table.publish(txn_version(1, 3), [file])
    assert refused.value.facts["path"] == file.path
    assert table.txn_version() == txn_version(1, 2)
    table.publish(txn_version(1, 4), [other])
    assert ids_of(table)[-1] == 4


def _written_by_spark(table: ManagedTable, engine: SparkEngine, *ids: int) -> Any:
    """Let a task of Spark stage a file."""
    frame = engine.session.createDataFrame(rows(*ids)).coalesce(1)
    (file,) = Staging(table.folder, 1, uuid4().hex).write_frame(frame, "rows")
    return file


def test_a_visible_file_that_is_gone_is_named(table: ManagedTable) -> None:
    (file,) = table.files.live()
    remove(table.folder, file.path)
    with pytest.raises(ObjectMissing, match=file.path):
        table.read()


@pytest.mark.seed("H18")
def test_what_tasks_wrote_to_a_bucket_they_read_there(table: ManagedTable, engine: SparkEngine) -> None:
    file = _written_by_spark(table, engine, 3, 4)

    assert (file.rows, file.first_id, file.last_id) == (2, 3, 4)
    folder, _, name = file.path.rpartition("/")
    assert list(table.folder.names(folder)) == [name]
    schema = engine.session.createDataFrame(rows(3)).schema
    frame = table.files.frame(engine.session, [*table.files.live(), file], schema.add("further", "double"))
    found = frame.toArrow()
    assert sorted(found["_sequence_id"].to_pylist()) == [1, 2, 3, 4]
    assert found["further"].null_count == 4
    table.publish(txn_version(1, 4), [file])
    assert ids_of(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("fault", [pytest.param("503", marks=pytest.mark.slow), "403"])
def test_a_store_that_tasks_do_not_reach_is_no_fault_of_an_operator(
    table: ManagedTable, engine: SparkEngine, proxy: FaultProxy, fault: Fault
) -> None:
    (file,) = table.files.live()
    schema = engine.session.createDataFrame(rows(3)).schema
    proxy.choose = lambda method, path, before: fault if "/_staged/" in path else None
    with pytest.raises((StoreUnavailable, StoreRefused)):
        _written_by_spark(table, engine, 3)
    with pytest.raises(Exception) as failed:
        table.files.frame(engine.session, [file], schema).collect()
    found = environment_fault(failed.value)
    assert isinstance(found, StoreUnavailable)
    assert file.path in found.message
    proxy.choose = lambda method, path, before: None
    assert table.files.frame(engine.session, [file], schema).count() == 2


def test_a_reply_that_a_task_lost_costs_no_row(table: ManagedTable, engine: SparkEngine, proxy: FaultProxy) -> None:
    """The client of the task writes the object again, and the facts describe the object in the bucket."""
    proxy.choose = lambda method, path, before: (
        "lost reply" if method in ("PUT", "POST") and "/_staged/" in path and not before else None
    )
    file = _written_by_spark(table, engine, 3, 4)
    assert sum("/rows/" in seen for seen in proxy.seen if seen.startswith(("PUT", "POST"))) > 1
    table.publish(txn_version(1, 4), [file])
    assert ids_of(table) == [1, 2, 3, 4]


@pytest.mark.seed("H8")
def test_orphans_of_dead_epochs_leave_the_bucket_and_this_machine(s3_place: BucketFolder, tmp_path: Path) -> None:
    store = RegionTables(tmp_path, REGION, s3_place)
    table = store.table("lake/orders")
    table.create(SCHEMA_JSON)
    (published,) = store.staging("lake/orders", 1, "published").write(rows(1), "rows")
    (named,) = store.staging("lake/orders", 1, "named").write(rows(2), "rows")
    store.staging("lake/orders", 1, "orphan").write(rows(3), "rows")
    store.staging("lake/orders", 2, "alive").write(rows(4), "rows")
    table.publish(txn_version(1, 1), [published])
    others = [store.inbox(0, "probe-of-another"), store.inbox(1, "dead")]
    for other in others:
        other.mkdir(parents=True)

    assert named.path.startswith("_staged/1-named/")
    store.checkpoint.create()
    store.checkpoint.claim(claim(1, attempt="named"))
    assert store.leftovers.collect_orphans(["lake/orders"], 2) == 1

    assert folders(table.folder, "_staged") == ["1-named", "1-published", "2-alive"]
    assert [other.exists() for other in others] == [True, False], "who has no claim may be at work beside us"
    assert set(store.leftovers.dead_spools(below_epoch=2, before=time.time() + 60)) == set(others[:1])


def test_regions_are_found_in_a_bucket(s3_place: BucketFolder, tmp_path: Path) -> None:
    assert regions_of(s3_place) == ()
    for region in ("shop/orders", "shop/returns", "zoo/animals"):
        RegionTables(tmp_path, region, s3_place).checkpoint.create()
    store_at(s3_place.store.connection.endpoint_url or "").put(
        BUCKET, f"{s3_place.prefix}/checkpoints/shop/notes/x", b""
    )
    assert regions_of(s3_place) == ("shop/orders", "shop/returns", "zoo/animals")


# --- credentials --------------------------------------------------------------------------------------------------


@pytest.mark.seed("D17")
def test_credentials_that_expire_are_renewed_at_the_next_opening(
    s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 runs the process again when its credentials have expired; `deltalake` gets the credentials of boto3."""
    count = tmp_path / "count"
    script = tmp_path / "credentials.py"
    script.write_text(
        "import datetime, json, pathlib\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=5)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'KEY{number}', 'SecretAccessKey': 's' * 40,\n"
        "                  'SessionToken': f'TOKEN{number}', 'Expiration': until.isoformat()}))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[profile short]\nregion = eu-west-1\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    folder = BucketFolder(ObjectStore(s3_server, "short"), BUCKET, "x")

    first, second = folder.storage_options(), folder.storage_options()

    assert first["aws_region"] == "eu-west-1"
    assert first["aws_access_key_id"] != second["aws_access_key_id"]
    assert first["aws_session_token"] != second["aws_session_token"]


@pytest.mark.seed("Z5")
def test_no_credential_is_in_a_table_an_error_or_a_text(proxy: FaultProxy, table: ManagedTable) -> None:
    told = [repr(table.folder), str(table.folder), repr(table.folder.store), repr(table)]
    told += [text_of(table.folder, f"_delta_log/{name}") for name in table.folder.names("_delta_log")]
    proxy.error = ("InternalError", " ".join(canary.KEYS.values()))
    for method, part in (("PUT", "_delta_log/"), ("PUT", "_staged/"), ("GET", "_delta_log/")):
        faulty(proxy, "500", method, part, times=1_000_000)
        with pytest.raises(StoreUnavailable) as failed:
            table.publish(txn_version(1, 3), staged(table, 3))
        told += traceback.format_exception(failed.value)
        told.append(json.dumps(failed.value.to_json()) + repr(failed.value.facts))
    assert not [secret for secret in canary.KEYS.values() for text in told if secret in text]
