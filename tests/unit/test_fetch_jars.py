"""The message of `make setup` if the jars of delta-spark could not be fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainmark.jobs.errors import StoreUnavailable
from drainmark.orchestration.cli import fetch_jars

IVY = """:: problems summary ::
    [NOT FOUND  ] io.delta#delta-spark_4.2_2.13;4.4.0!delta-spark_4.2_2.13.jar (2ms)
Exception in thread "main" java.lang.RuntimeException: [download failed: io.delta#delta-spark_4.2_2.13;4.4.0]
Traceback (most recent call last):
"""
FAILING_START = f"import sys; sys.stdout.write({IVY!r}); sys.exit(1)"


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home without jars, in which the first start fails as Ivy does."""
    monkeypatch.setattr("drainmark.resources.spark.unnamed_user.user_homes", lambda: iter([tmp_path]))
    monkeypatch.setattr(
        "drainmark.resources.spark.session_settings.delta_settings", lambda: {"spark.jars.packages": "io.delta:x:1"}
    )
    monkeypatch.setattr(fetch_jars, "_START", FAILING_START)
    return tmp_path


def test_a_half_filled_cache_is_named_first(fresh: Path) -> None:
    (fresh / ".m2" / "repository").mkdir(parents=True)
    with pytest.raises(StoreUnavailable) as raised:
        fetch_jars.fetch_jars()
    assert "download failed" in raised.value.message
    assert "Traceback" not in raised.value.message
    assert (raised.value.remedy or "").startswith(f"clear {fresh / '.m2' / 'repository'}")


@pytest.mark.usefixtures("fresh")
def test_without_a_cache_the_network_is_to_blame() -> None:
    with pytest.raises(StoreUnavailable) as raised:
        fetch_jars.fetch_jars()
    assert "clear" not in (raised.value.remedy or "")
    assert "Maven" in (raised.value.remedy or "")


def test_jars_that_are_there_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"spark.jars": "delta.jar"}
    monkeypatch.setattr("drainmark.resources.spark.session_settings.delta_settings", lambda: there)
    monkeypatch.setattr(fetch_jars, "_START", FAILING_START)
    assert fetch_jars.fetch_jars() is False
