"""The whole state of a handler is written from time to time, also if its checkpoints come late (V160, H29)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from drainmark.jobs.state.handlers.handler_state import HandlerState
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import LocalFolder

GROUPS = 150
CHUNKS = 20


def chunks(number: int, count: int) -> pa.Table:
    return pa.table({
        "entry": pa.array(["app/op"] * count, pa.string()), "chunk": pa.array(range(count), pa.int64()),
        "value": pa.array([b"%d" % number] * count, pa.binary()),
        "_sequence_id": pa.array([number] * count, pa.int64()),
    })  # fmt: skip


@pytest.mark.seed("V160")
@pytest.mark.parametrize("is_late", [True, False], ids=["in the background", "with the group"])
def test_groups_of_one_get_an_image_now_and_then(tmp_path: Path, is_late: bool) -> None:
    """Chunks that are written during the next group count like those of a blocking handler."""
    folder = LocalFolder(tmp_path)
    stored = ManagedTable(folder, "app/start").files
    state: Any = HandlerState.load(
        table="state/app/op", stored=stored, keys=("entry", "chunk"), schema=None, image=None, live=()
    )
    images: list[int] = []
    session: Any = None
    for number in range(1, GROUPS + 1):
        here = chunks(number, CHUNKS)
        now, late = (here.slice(0, 0), here) if is_late else (here, here.slice(0, 0))
        state.take = lambda late=late: lambda: late
        frozen = state.prepare(number, (), now)
        written = state.checkpoint(frozen, Staging(folder, 1, uuid.uuid4().hex), session)
        images += [written.image.at] if written.image else []
        state.checkpointed(written)
    assert len(images) == 2, "after 64 files of changes"
    assert len(state.change_files) <= 64
    assert state.chunks() == dict.fromkeys(range(CHUNKS), b"%d" % GROUPS)
