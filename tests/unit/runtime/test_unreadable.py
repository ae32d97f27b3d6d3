"""The errors of Spark that blame a file's content, and the cases that only Spark handles (I9, I11)."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.spark_rejects import bad_records
from drainmark.jobs.runtime.input.spark_reading import is_about_content

NAMED = "[FAILED_READ_FILE.{}] Encountered error while reading file file:/inbox/0000000000000000007.gz. SQLSTATE: KD001"


@pytest.mark.seed("I9")
@pytest.mark.parametrize("cause", ["java.util.zip.ZipException: invalid stored block lengths", "incorrect data check"])
def test_damaged_content_is_the_files_fault(cause: str) -> None:
    assert is_about_content(f"{NAMED.format('NO_HINT')}\nCaused by: {cause}")


@pytest.mark.parametrize(
    "cause",
    [
        "java.io.FileNotFoundException: /inbox/0000000000000000007.gz (Too many open files)",
        "java.io.IOException: Input/output error",
        "java.nio.file.FileSystemException: Stale file handle",
        "org.apache.hadoop.security.AccessControlException: Permission denied",
    ],
)
def test_a_fault_of_the_machine_is_not_the_files(cause: str) -> None:
    assert not is_about_content(f"{NAMED.format('NO_HINT')}\nCaused by: {cause}")
    assert not is_about_content(NAMED.format("FILE_NOT_EXIST"))


def test_a_bad_row_of_a_file_that_only_spark_unpacks_has_the_number_of_its_record(tmp_path: Path) -> None:
    path = tmp_path / "0000000000000000007.deflate"
    path.write_bytes(zlib.compress(b"1\nx\n"))
    expected = Expected(format="csv", columns=())
    (record,) = bad_records([(2, "x", zlib.crc32(b"x"), 1)], path, expected)
    assert (record.position, record.raw) == (2, "x")
