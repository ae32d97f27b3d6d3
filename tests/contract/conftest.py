"""Where contracts are checked: both databases that a registry may be in, both stores that tables may be in."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from places import BUCKET, make_bucket, place_at
from publishers import make_template

from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import Folder


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty registry."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/home/registry.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A folder for tables, empty."""
    if request.param == "local":
        return place_at(str(tmp_path / "tables"))
    found: Folder = request.getfixturevalue("s3_place")
    return found


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def wide_place(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A folder for tables, empty; for what is tried with every verb, in a bucket only with the slow tests."""
    if request.param == "local":
        return place_at(str(tmp_path / "tables"))
    found: Folder = request.getfixturevalue("s3_place")
    return found


@pytest.fixture
def s3_place(s3_server: str, s3_credentials: None) -> Folder:
    """A prefix of a bucket of the S3 server, empty."""
    make_bucket(s3_server)
    return place_at(f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_server)


@pytest.fixture(scope="session")
def template(engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of somebody else, adopted; to be copied."""
    root = tmp_path_factory.mktemp("template") / "orders"
    make_template(engine, root)
    return root
