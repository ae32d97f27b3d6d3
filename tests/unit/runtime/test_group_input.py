"""The ids and sizes of a group, and the summary of a failure: pure parts of the runtime."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path

import pytest

from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.graph.blame import summary_of
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox, paths_by_id
from drainmark.jobs.runtime.probe.row_wise_probe import pairs
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.storage.object_store import ObjectStore


def trigger(uri: str, size: int = 10) -> Trigger:
    return Trigger(
        uri=uri, identity={}, identity_key="", size_bytes=size, order_index=1, status=TriggerStatus.PENDING, id=1,
        region="app/start", discovered_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    )  # fmt: skip


def group(*uris: str) -> Group:
    members = tuple(Assigned(sequence_id=7 + index, trigger=trigger(uri)) for index, uri in enumerate(uris))
    return Group(members=members, epoch=2, attempt="a")


def test_a_group_knows_its_first_and_last_id_and_finds_its_members() -> None:
    found = group("a", "b", "c")
    assert (found.first_id, found.last_id) == (7, 9)
    assert found.member(8).trigger.uri == "b"
    assert paths_by_id(found.members) == "a\0b\0c"


@pytest.mark.parametrize(("uri", "estimate"), [("a.csv", 10), ("a.csv.gz", 100), ("a.zst", 100), ("a.gz.csv", 10)])
def test_compressed_files_count_for_more_than_their_size(uri: str, estimate: int) -> None:
    assert group(uri).bytes_to_read == estimate


@pytest.mark.seed("DX3")
@pytest.mark.usefixtures("s3_credentials")
@pytest.mark.parametrize(("uri", "helps"), [("s3://bucket/in//x", "another key"), ("/in/x.csv", "into a bucket")])
def test_an_input_that_no_task_reaches_is_told_with_what_helps(tmp_path: Path, uri: str, helps: str) -> None:
    unreached = replace(trigger(uri), identity={"etag": "e", "size": 10})
    members = (Assigned(sequence_id=1, trigger=unreached),)
    inbox = GroupInbox(tmp_path / "inbox", Group(members=members, epoch=2, attempt="a"), Inputs(ObjectStore()))
    with pytest.raises(ClusterRefused, match=re.escape(uri)) as refused:
        inbox.fill(by_tasks=True, here=False)
    assert helps in str(refused.value.remedy)


FROM_A_WORKER = (
    'An exception: Traceback (most recent call last):\n  File "./x.zip/work.py", line 1, in f\n    raise\n    ^^^^\n'
)
BEFORE = f"{FROM_A_WORKER}KeyError: 'k'\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("", "ValueError"),
        ("plain", "ValueError: plain"),
        (f"{FROM_A_WORKER}KeyError: 'k'\n\n\tat java.lang.Thread\nOtherError: later", "KeyError: 'k'"),
        (f"{FROM_A_WORKER}lib.ArrowInvalid: null\n SQLSTATE: 38000\n", "lib.ArrowInvalid: null"),
        (f"{BEFORE}{FROM_A_WORKER}my.Halt\n", "my.Halt"),
        (f"{FROM_A_WORKER}ValueError: \n\n  no such day\nor hour\n\n\tat java.lang.Thread", "ValueError: no such day"),
        (f"{FROM_A_WORKER}ValueError: \n\n\tat java.lang.Thread", "ValueError:"),
        ("\n\n no such day\n", "ValueError: no such day"),
        ("Job aborted\norg.apache.spark.SparkException: no", "ValueError: Job aborted"),
    ],
)
def test_the_telling_line_of_an_error_is_found(text: str, summary: str) -> None:
    assert summary_of(ValueError(text)) == summary


@pytest.mark.seed("DX6")
def test_a_probe_fetches_no_large_object() -> None:
    pending = [trigger("s3://b/large", 64 << 20), trigger("s3://b/a"), trigger("/large", 64 << 20), trigger("s3://b/c")]
    assert [[each.uri for each in pair] for pair in pairs(pending)] == [["s3://b/a", "/large"]]
    assert not list(pairs([trigger("s3://b/large", 64 << 20), trigger("s3://b/a")]))
