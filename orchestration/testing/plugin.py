"""pytest fixtures of the test kit, found by the entry point `pytest11`; heavy modules are loaded on first use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainmark.orchestration.testing.running import Result

_SESSION = "drainmark.orchestration.testing.session"


@pytest.fixture
def drainmark_home(tmp_path: Path) -> Path:
    """Return a DRAINMARK_HOME for this test only; the folder does not exist yet."""
    return tmp_path / "home"


@pytest.fixture(scope="session")
def drainmark_session() -> SparkSession:
    """Return the Spark session that all tests of the run share."""
    from drainmark.orchestration.testing.session import shared_engine

    return shared_engine().session


@pytest.fixture
def run_app(tmp_path: Path, drainmark_home: Path) -> Iterator[Callable[..., Result]]:
    """Yield `dm.testing.run_app` for this test's folder; each call after the first one has a folder of its own."""
    from drainmark.orchestration.testing.running import run_app as run

    results: list[Result] = []

    @functools.wraps(run)
    def run_here(*arguments: Any, **options: Any) -> Result:
        number = len(results)
        home = drainmark_home if not number else tmp_path / f"run-{number + 1}" / "home"
        result = run(*arguments, **{"home": home, **options})
        results.append(result)
        return result

    yield run_here
    for result in results:
        result.close()


def pytest_unconfigure() -> None:
    """Stop the session if a test started it."""
    if _SESSION in sys.modules:
        sys.modules[_SESSION].stop_shared_engine()
