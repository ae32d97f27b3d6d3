"""One broker for all tests of Kafka. They are not in the default run: `make test-kafka`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import Broker, why_not


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Yield the broker of the run; skip the test if none can be started."""
    if reason := why_not():
        pytest.skip(reason)
    found = Broker()
    try:
        found.create()
        yield found
    finally:
        found.remove()
