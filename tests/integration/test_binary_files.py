"""Binary files: one row each, unchanged; a file that is too large for a row is quarantined whole (I9, I14)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from bad_inputs import REGION, copying, fates, run, write
from harness import rows

import drainmark as dm
from drainmark.jobs.errors import DeclarationError
from drainmark.jobs.formats import binary
from drainmark.orchestration.workplace.workplace import Workplace

FILES = {
    "a.bin": bytes(range(256)),
    "b.bin.gz": gzip.compress(b"not unpacked", mtime=0),
    "c_ö .bin": b"\0\r\n\xff",
    "d.bin": b"",
    "_e.bin": b"x" * 5000,
}


@pytest.mark.spark
def test_a_file_is_a_row_whatever_is_in_it(workplace: Workplace, tmp_path: Path) -> None:
    workplace.settings = workplace.settings.model_copy(update={"small_group_bytes": 0})
    inbox = tmp_path / "inbox"
    write(inbox, FILES)
    found = run(workplace, inbox, format="binary")
    assert set(found) == set(FILES)
    for name, content in FILES.items():
        whole = [{"content": content, "length": len(content)}] if content else []
        assert found[name].rows_in == len(whole)
        assert [{key: row[key] for key in ("content", "length")} for row in found[name].rows] == whole, name
    assert not any(fate.bad for fate in found.values())
    assert len(rows(workplace, REGION, "copied")) == 4


@pytest.mark.spark
def test_a_file_too_large_for_a_row_is_quarantined_whole(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    monkeypatch.setattr(binary, "CAPS", dataclasses.replace(binary.CAPS, document_bytes=1000))
    inbox = tmp_path / "inbox"
    write(inbox, FILES)
    run(workplace, inbox, format="binary")
    found = fates(workplace, inbox)
    assert found["_e.bin"].refused == "has 5000 bytes, more than the 1000 of one row"
    assert {name for name, fate in found.items() if fate.refused} == {"_e.bin"}
    assert len(rows(workplace, REGION, "copied")) == 3


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_a_schema_that_nobody_would_use_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        copying(tmp_path, format=kind, schema="value string")
    assert "SCHEMA_UNUSED" in {violation.rule for violation in caught.value.violations}


def test_the_kit_takes_bytes_alone() -> None:
    from drainmark.jobs.errors import UsageError
    from drainmark.orchestration.testing.files import encoded

    scan = dm.DirectoryScan(path="x", format="binary")
    assert encoded(b"\0\1", scan, "a.bin") == b"\0\1"
    with pytest.raises(UsageError):
        encoded([{"content": b"\0"}], scan, "a.bin")
