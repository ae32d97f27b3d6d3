"""One broker for the run of these tests, which are not in the default run: `make test-kafka`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import Broker, why_not


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The run's broker; skips where none can be started."""
    if reason := why_not():
        pytest.skip(reason)
    found = Broker()
    try:
        found.create()
        yield found
    finally:
        found.remove()
