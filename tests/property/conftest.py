"""The slow properties run only when asked for: `-m slow`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests of this folder out, unless the command line selects by markers."""
    if config.getoption("markexpr"):
        return
    here = Path(__file__).parent
    left_out = [item for item in items if here in item.path.parents and item.get_closest_marker("slow")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
