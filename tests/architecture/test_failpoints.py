"""Every place where a run can be made to fail is passed by the product and tried by a test."""

from __future__ import annotations

import re

import pytest

from architecture.tree import files_of_tests, product_files
from jobs.failpoints import FailPoint

EVERY_POINT = re.compile(r"(\bin |list\(|tuple\(|sorted\(|\*)FailPoint\b(?!\.)")
"""A test that goes through all of them names each one."""


@pytest.mark.parametrize("point", FailPoint, ids=str)
def test_a_fail_point_is_passed_by_the_product(point: FailPoint) -> None:
    passed = [
        path for path in product_files() if path.name != "failpoints.py" and f"FailPoint.{point.name}" in path.read_text()
    ]
    assert passed, f"nothing reaches {point}"


@pytest.mark.parametrize("point", FailPoint, ids=str)
def test_a_fail_point_is_named_in_a_test(point: FailPoint) -> None:
    texts = [path.read_text() for path in files_of_tests()]
    named = [text for text in texts if f"FailPoint.{point.name}" in text or point.value in text]
    assert named or any(EVERY_POINT.search(text) for text in texts), f"no test makes a run fail at {point}"
