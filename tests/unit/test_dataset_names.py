"""The names of datasets in OpenLineage events are those of OpenLineage's naming conventions, and have no password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.exporters.datasets import Dataset, input_of, output_of
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

QUERY = "select id from t where id > :after and id <= :upto order by id"
WAREHOUSE = "postgresql://me:s3cret@db.example/warehouse"


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    told: dict[str, Any] = {
        "databases": {
            "warehouse": WAREHOUSE,
            "shop": "sqlite:///{home}/shop.db",
            "near": "postgresql:///shop?host=/run/postgresql",
        },
        "kafka": {"main": {"bootstrap_servers": "k1.example:9092,k2.example:9092"}},
    }
    return Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, **told))


def source_reading(reads: Any) -> Any:
    with dm.application("named") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(reads)
        def read(scanned: Any) -> Any:
            return scanned

        dm.sink(read, dm.DeltaAppend("rows"))
    (region,) = compile_application(dm.build_application(declared)).regions
    return region.starts[0]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (dm.DirectoryScan(path="inbox"), ("file", "{root}/inbox")),
        (dm.DirectoryScan(path="s3://bucket/in/"), ("s3://bucket", "in")),
        (dm.KafkaSource("clicks", "h.example:9092"), ("kafka://h.example:9092", "clicks")),
        (dm.KafkaSource("clicks", cluster="main"), ("kafka://k1.example:9092", "clicks")),
        (dm.TableSource("orders"), ("file", "{home}/lake/orders")),
        (dm.TableSource("s3://bucket/lake/orders"), ("s3://bucket", "lake/orders")),
        (
            dm.DatabaseSource("warehouse", QUERY, cursor="id", schema="id int"),
            ("postgres://db.example:5432", "warehouse.query.read"),
        ),
        (dm.Beacon(rows=1, batches=1), ("drainmark", "named/read/read")),
    ],
)  # fmt: skip
def test_inputs(place: Workplace, reads: Any, expected: tuple[str, str]) -> None:
    found = input_of(place, "named/read", source_reading(reads))
    root, home = place.settings.project_root, place.home
    assert found == Dataset(expected[0], expected[1].format(root=root, home=home))


def test_a_lookup_names_its_table(place: Workplace) -> None:
    with dm.application("named"):
        lookup = dm.lookup("names")
    assert input_of(place, "named/read", lookup.operator) == Dataset("file", f"{place.home}/lake/names")


def table(name: str, external: str = "", **options: str) -> RegionTable:
    return RegionTable(
        name=name, role=TableRole.APPEND, operator="sink", schema_json="{}", external=external, options=options
    )


def test_outputs(place: Workplace) -> None:
    home, root = place.home, place.settings.project_root
    assert output_of(place, table("lake/orders")) == Dataset("file", f"{home}/lake/orders")
    warehouse = table("database/warehouse/orders", "database", database="warehouse", table="orders")
    assert output_of(place, warehouse) == Dataset("postgres://db.example:5432", "warehouse.public.orders")
    shop = table("database/shop/orders", "database", database="shop", table="orders")
    assert output_of(place, shop) == Dataset("file", f"{home}/shop.db/orders")
    near = table("database/near/orders", "database", database="near", table="orders")
    assert output_of(place, near) == Dataset("postgres://localhost:5432", "shop.public.orders")
    assert output_of(place, table("files/out", "file", path="out/orders")) == Dataset("file", f"{root}/out/orders")
    assert output_of(place, table("files/x", "file", path="s3://bucket/out")) == Dataset("s3://bucket", "out")
