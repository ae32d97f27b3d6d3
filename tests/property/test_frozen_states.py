"""The checkpoint writes the state that `prepare` froze, whatever happened to the state since (N15, N16, N25)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.checkpointed_state import Frozen, Written
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging

KEYS = ("k",)
POSITION = pa.struct([("block", pa.int64()), ("row", pa.int64())])
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("_position", POSITION), ("_sequence_id", pa.int64())])

groups = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)), max_size=6), min_size=2, max_size=6
)


def changes(number: int, rows: Sequence[tuple[str | None, int]]) -> pa.Table:
    """Return the changes of a group of one id: one row for each key if one is kept, else any rows."""
    values = [
        {"k": key, "n": n, "_position": {"block": 0, "row": place}, "_sequence_id": number}
        for place, (key, n) in enumerate(rows)
    ]
    return pa.Table.from_pylist(values, schema=SCHEMA)


def contents(folder: Path, written: Written) -> list[bytes]:
    files: list[StagedFile] = [*written.files, *(written.image.files if written.image else ())]
    return [(folder / file.path).read_bytes() for file in files]


def empty_state(root: Path, depth: int) -> KeyedState:
    return KeyedState.load(
        table="state/app/counts", stored=ManagedTable(root, "app/start").files, keys=KEYS, schema=None, image=None,
        live=(), depth=depth,
    )  # fmt: skip


@pytest.mark.seed("N15", "N16", "N25", "N27", "X11")
@pytest.mark.parametrize("depth", [1, 3])
@given(batches=groups)
@settings(max_examples=examples(60), deadline=None)
def test_a_frozen_version_is_written_as_it_was(depth: int, batches: list[list[tuple[str | None, int]]]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        state = empty_state(root, depth)
        kept: list[tuple[Frozen, list[bytes], pa.Table | None]] = []
        session: Any = None  # a state in memory needs no Spark
        for number, batch in enumerate(batches, 1):
            rows = dict(batch).items() if depth == 1 else batch
            frozen = state.prepare(number, (), changes(number, list(rows)))
            written = state.checkpoint(frozen, Staging(root, 1, f"now-{number}"), session)
            kept.append((frozen, contents(root, written), state.rows))
            state.checkpointed(written)
        for number, (frozen, before, rows) in enumerate(kept):
            later = state.checkpoint(frozen, Staging(root, 2, f"later-{number}"), session)
            assert contents(root, later) == before
            assert frozen.rows is None or frozen.rows.equals(rows)
        assert (state.files) or not any(batches)


@given(batches=groups)
@settings(max_examples=examples(60), deadline=None)
def test_the_last_rows_of_a_key_are_those_of_plain_python(batches: list[list[tuple[str | None, int]]]) -> None:
    with TemporaryDirectory() as folder:
        state = empty_state(Path(folder), 3)
        wanted: dict[str | None, list[int]] = {}
        for number, batch in enumerate(batches, 1):
            state.prepare(number, (), changes(number, batch))
            for key, n in batch:
                wanted[key] = [*wanted.get(key, []), n][-3:]
        found: dict[str | None, list[int]] = {}
        for row in state.rows.to_pylist() if state.rows is not None else []:
            found.setdefault(row["k"], []).append(row["n"])
        assert found == wanted
