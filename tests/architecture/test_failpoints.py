"""Fail points: the product passes each one, and a test tries it."""

from __future__ import annotations

import functools
import re
from enum import StrEnum

import pytest
from architecture.tree import files_of_tests, product_files, relative

from drainmark.jobs.failpoints import COMMITS, ChannelPoint, FailPoint, FilePoint, SourcePoint, StorePoint

POINTS = (*FailPoint, *StorePoint, *FilePoint, *ChannelPoint, *SourcePoint)
EVERY_POINT = re.compile(r"(\bin |list\(|tuple\(|sorted\(|\*)FailPoint\b(?!\.)")
"""Code that goes through all fail points: a test with it tries each one."""

PRODUCT = {relative(path): path.read_text() for path in product_files() if path.name != "failpoints.py"}


@functools.cache
def texts_of_tests() -> list[str]:
    return [path.read_text() for path in files_of_tests()]


@functools.cache
def is_every_one_tried() -> bool:
    return any(EVERY_POINT.search(text) for text in texts_of_tests())


def name_of(point: StrEnum) -> str:
    return f"{type(point).__name__}.{point.name}"


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_fail_point_is_passed_by_the_product(point: StrEnum) -> None:
    """The one function that commits passes both points of a commit, under the name of its step."""
    passed = any(name_of(point) in text for text in PRODUCT.values())
    if not passed and point in COMMITS:
        step, _, moment = point.value.partition(".")
        commit = PRODUCT["resources/delta/commits.py"]
        passed = f'}}.{moment}"' in commit and any(f'"{step}"' in text for text in PRODUCT.values())
    assert passed, f"nothing reaches {point}"


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_fail_point_is_named_in_a_test(point: StrEnum) -> None:
    named = any(name_of(point) in text or point.value in text for text in texts_of_tests())
    every = isinstance(point, FailPoint) and is_every_one_tried()
    assert named or every, f"no test makes a run fail at {point}"
