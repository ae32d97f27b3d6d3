"""A `TableSource` of a table with a cut log: Drainmark raises an error with a remedy, and skips no version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import drainmark as dm
from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.settings import Settings

VERSIONS = 4
CUT = SliceLimit(source="rows", is_periodic=True)


def entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def _half(path: Path) -> None:
    path.write_text(path.read_text()[:40])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(VERSIONS):
        write_deltalake(str(tmp_path / "t"), pa.table({"v": [number]}), mode="append")
    return tmp_path / "t"


@pytest.fixture
def access(tmp_path: Path) -> Any:
    settings = Settings(home=tmp_path / "home", project_root=tmp_path)
    return RegionAccess("app/rows", settings, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("read", [0, 2])
@pytest.mark.parametrize(
    ("cut", "error"),
    [
        (lambda table: entry(table, 0).unlink(), InputMissing),
        (lambda table: entry(table, 1).unlink(), InputMissing),
        (lambda table: _half(entry(table, 3)), InputMissing),
        (lambda table: _half(entry(table, 1)), InputMissing),
        (lambda table: entry(table, 1).write_bytes(b"\xff\xfe\0"), InputMissing),
        (lambda table: entry(table, 3).write_text(""), InputChanged),
    ],
    ids=["first gone", "one gone", "newest cut", "one cut", "no text", "newest empty"],
)
def test_a_log_that_was_cut_halts_with_a_remedy(
    table: Path, access: Any, cut: Callable[[Path], None], error: type[Exception], read: int
) -> None:
    source = dm.TableSource(str(table))
    taken = source.next_slice(None, access, CUT)
    assert taken is not None
    after = {**taken.end, "version": read} if read else None
    cut(table)
    with pytest.raises(error) as refused:
        source.next_slice(after, access, CUT)
    assert "in another application" in str(refused.value)


def test_a_table_that_went_back_is_not_waited_for(table: Path, access: Any) -> None:
    """A backup was restored: its next versions differ from the versions that were read."""
    source = dm.TableSource(str(table))
    taken = source.next_slice(None, access, CUT)
    assert taken is not None
    assert source.next_slice(taken.end, access, CUT) is None
    entry(table, 3).unlink()
    with pytest.raises(InputChanged):
        source.next_slice(taken.end, access, CUT)


def test_a_bound_with_a_line_end_of_unicode_is_no_damage(table: Path, access: Any) -> None:
    write_deltalake(str(table.parent / "u"), pa.table({"v": ["a\u2028b", "c\x85d"]}))
    source = dm.TableSource(str(table.parent / "u"))
    taken = source.next_slice(None, access, CUT)
    assert taken is not None
    assert source.next_slice(taken.end, access, CUT) is None
