"""Fixtures of the contract tests: both databases of a registry, and both stores of tables."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from places import BUCKET, make_bucket, place_at
from publishers import make_template

from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import Folder
from drainmark.resources.storage.object_store import ObjectStore


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty registry."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/home/registry.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Return an empty folder for tables."""
    if request.param == "local":
        return place_at(str(tmp_path / "tables"))
    found: Folder = request.getfixturevalue("s3_place")
    return found


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def wide_place(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Return an empty folder for tests that run for every verb; in a bucket only with the slow tests."""
    if request.param == "local":
        return place_at(str(tmp_path / "tables"))
    found: Folder = request.getfixturevalue("s3_place")
    return found


@pytest.fixture
def s3_place(s3_server: str, s3_credentials: None) -> Folder:
    """Return an empty prefix of a bucket of the S3 server."""
    make_bucket(s3_server)
    return place_at(f"{BUCKET}/{uuid.uuid4().hex}", s3_server)


@pytest.fixture(scope="session")
def template(engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of an adopted table, which tests copy."""
    root = tmp_path_factory.mktemp("template") / "orders"
    make_template(engine, root)
    return root


@pytest.fixture
def bucket() -> str:
    """Return the address of a bucket, which `store` makes."""
    return f"s3://bucket-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(s3_server: str, bucket: str) -> ObjectStore:
    made = ObjectStore(s3_server)
    made.connection.client.create_bucket(Bucket=bucket.removeprefix("s3://"))
    return made
