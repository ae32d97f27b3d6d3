"""One Spark session for the whole run; a fresh home a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestration.assembly import Workplace
from resources.settings import Settings
from resources.spark import SparkEngine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """The session of the run."""
    engine = SparkEngine("local[2]", {"spark.driver.memory": "2g"}, tmp_path_factory.mktemp("spark"))
    yield engine
    engine.stop()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own."""
    return Settings(home=tmp_path / "home", project_root=tmp_path)


@pytest.fixture
def workplace(settings: Settings, engine: SparkEngine) -> Iterator[Workplace]:
    """An open home with the run's Spark session."""
    place = Workplace(settings)
    place.use_engine(engine)
    yield place
    place.registry.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below the inbox, in place at once."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / "inbox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.part")
        hidden.write_text(text)
        return hidden.rename(path)

    return write_file
