"""The test kit `dm.testing`: run an application on files in memory, let it fail at every step, compare the results.

    def test_counts(run_app):
        result = run_app("app.py", {"a.txt": "to be", "b.txt": "to do"})
        assert result.sink("word_counts", at=1) == [{"word": "be", "count": 1}, {"word": "to", "count": 1}]

Importing it loads neither Spark nor Dagster; the pytest fixtures are in `drainmark.orchestration.testing.plugin`.

Example:
    result = dm.testing.run_app("shop.py", {"orders/1.json": '{"id": 1, "amount": 9.5}'})
    print(result.sink("order_rows", at=1))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainmark.orchestration.testing.applications import App
    from drainmark.orchestration.testing.crash.trial import Proof
    from drainmark.orchestration.testing.crashing import crash_on
    from drainmark.orchestration.testing.exactly_once import assert_exactly_once, assert_grouping_free
    from drainmark.orchestration.testing.files import Files
    from drainmark.orchestration.testing.laws import assert_aggregation_laws
    from drainmark.orchestration.testing.long_runs import Staying, staying
    from drainmark.orchestration.testing.running import Result, run_app

__all__ = [
    "App",
    "Files",
    "Proof",
    "Result",
    "Staying",
    "assert_aggregation_laws",
    "assert_exactly_once",
    "assert_grouping_free",
    "crash_on",
    "run_app",
    "staying",
]

_MODULES = {
    "App": "applications",
    "Files": "files",
    "Proof": "crash.trial",
    "Result": "running",
    "Staying": "long_runs",
    "assert_aggregation_laws": "laws",
    "assert_exactly_once": "exactly_once",
    "assert_grouping_free": "exactly_once",
    "crash_on": "crashing",
    "run_app": "running",
    "staying": "long_runs",
}


if not TYPE_CHECKING:  # to a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        """Load a name on first use: pytest imports this package at each start, whether a test uses it or not."""
        if name not in _MODULES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
