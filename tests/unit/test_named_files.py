"""Which file a name in a command means: its uri, its path from here, or the end of either, also if it is no UTF-8."""

from __future__ import annotations

import os

import pytest

from drainmark.jobs.scan.folder import uri_of
from drainmark.orchestration.verbs.file_names import names_file

RAW = os.fsdecode(b"/in/day/a\xff.csv")


@pytest.mark.parametrize(
    "name", [RAW, os.fsdecode(b"a\xff.csv"), os.fsdecode(b"day/a\xff.csv"), uri_of(RAW), "a%FF.csv"]
)
def test_a_name_that_is_no_utf8_names_its_file(name: str) -> None:
    assert names_file(uri_of(RAW), name)


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff.csv"), os.fsdecode(b"a\xfe.csv"), "a.csv"])
def test_another_name_does_not(name: str) -> None:
    assert not names_file(uri_of(RAW), name)
