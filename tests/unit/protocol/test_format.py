"""The format version covers the vocabulary of checkpoint rows: an older Drainmark refuses rows that it cannot read.

A role or a field that an older version does not know makes it fail while it reads, or ignore an important fact. A
change of the list below must also raise `FORMAT_VERSION`: then the older version says which version to install (R6).
"""

from __future__ import annotations

import dataclasses

import pytest

from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.deletion_vectors import DeletionVector
from drainmark.jobs.protocol.records.manifest import (
    FeedTaken,
    Image,
    Manifest,
    RegionTable,
    Replaced,
    Sent,
    StagedFile,
    TableRole,
)
from drainmark.jobs.protocol.stage_flow import InFlight

VOCABULARY = {
    "format": 6,
    "kinds": "claim halt progress published refused resume rewind skip state",
    "roles": "append changes copy overwrite upsert",
    "RegionTable": "adopted columns deletes evolves external history keys name operator options retention role"
    " schema_json withdrawn_by",
    "Manifest": "channels dropped_intervals feeds files images late lookups replaced restarts sent spans stages"
    " upserts",
    "InFlight": "bytes files first_id half last_id rows",
    "FeedTaken": "bad error files rows",
    "Sent": "error rows",
    "Image": "at files runs table",
    "Replaced": "by_nothing files ids",
    "StagedFile": "first_id last_id partition path rows size",
    "CheckpointRow": "attempt bytes_in checkpoint_seconds detail drain_seconds drainmark_version epoch format_version"
    " graph_fingerprint group_first group_last kind params_hash recorded_at region rows_in run_id sequence_id"
    " trigger_identity trigger_kind trigger_order trigger_uri",
}


@pytest.mark.seed("R6")
def test_what_rows_may_say_goes_with_the_format() -> None:
    values = (FeedTaken, Sent, InFlight, Image, Manifest, RegionTable, Replaced, StagedFile, CheckpointRow)
    found = {
        "format": FORMAT_VERSION,
        "kinds": " ".join(sorted(RowKind)),
        "roles": " ".join(sorted(TableRole)),
        **{value.__name__: _stored(value) for value in values},
    }
    assert found == VOCABULARY, "an older version would misread it: raise FORMAT_VERSION, then write this anew"


def _stored(value: type) -> str:
    """Return the stored fields; a field that is not compared, such as a file's mark, belongs to one process.

    Which rows of a visible file have left is in the log of its table, and in no row.
    """
    fields = {field.name for field in dataclasses.fields(value) if field.compare}
    return " ".join(sorted(fields - ({"vector"} if value is StagedFile else set())))


def test_no_row_says_which_rows_of_a_file_have_left() -> None:
    vector = DeletionVector(path="v.bin", offset=1, size=2, rows=1)
    assert "vector" not in StagedFile(path="a", size=1, rows=1, first_id=1, last_id=1, vector=vector).to_json()
