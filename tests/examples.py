"""The number of examples of the property tests: a quarter by default, all in `make test-recovery`."""

from __future__ import annotations

import os


def examples(all_of_them: int) -> int:
    """Return how many examples a test tries in this run."""
    return all_of_them if os.environ.get("DRAINMARK_TEST_LONG") else max(all_of_them // 4, 5)
