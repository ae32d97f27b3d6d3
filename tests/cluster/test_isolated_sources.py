"""Databases and topics that workers read with their own credentials; they share only a bucket with the run.

No password is in the files and logs of Spark, nor in the messages of the run.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import broker
import canary
import pyarrow as pa
import pytest
import sqlalchemy as sa
from clusters import Project, standalone, why_not_isolated
from deltalake import WriterProperties, write_deltalake
from postgres import PostgresServer
from test_isolated import Bucketed, hidden_from_workers

from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
    pytest.mark.timeout(900),  # it shares the machine with other tests
]

PASSWORD = "canary-password-of-a-source"  # noqa: S105
ROWS = 450
APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source({source})
def people(scanned):
    return scanned.selectExpr("*", "_position.row as place")


dm.sink(people, dm.DeltaAppend("kept"))
"""
QUERY = """dm.DatabaseSource(
    "{database}",
    "select id, name, current_user as who from people where id > :after and id <= :upto order by id",
    schema="id bigint, name string, who string",
    rows=400,
)"""
TOPIC = 'dm.KafkaSource("{topic}", cluster="main", format="json", schema="id bigint", message_bytes=256)'
TABLES = """
import drainmark as dm


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source(dm.TableSource("s3://{bucket}/others/stock"))
def stored(scanned):
    return scanned.selectExpr("*", "_position.row as place")


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source(dm.TableSource("{away}"))
def away(scanned):
    return scanned.selectExpr("*", "_position.row as place")


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source(
    dm.DatabaseSource(
        "lite",
        "select id, name from people where id > :after and id <= :upto order by id",
        schema="id bigint, name string",
        rows=400,
    )
)
def lite(scanned):
    return scanned.selectExpr("*", "_position.row as place")


for rows in (stored, away, lite):
    dm.sink(rows, dm.DeltaAppend(f"kept_{{rows.name}}"))
"""
PUSHED = 'dm.ReplayableStart(schema="id bigint", buffer="s3://{bucket}/buffers")'


@dataclass(frozen=True, slots=True)
class Apart(Bucketed):
    """A project on a cluster; its workers have their own environment."""

    seen: Path

    def declare(self, source: str) -> None:
        (self.project.folder / "app.py").write_text(APP.format(source=source))

    def leaks(self) -> list[Path]:
        """Return the files that contain the password: logs of workers and executors, events of Spark, home."""
        files = [path for root in (self.seen, self.project.folder) for path in root.rglob("*") if path.is_file()]
        assert any(b"MapInArrow" in path.read_bytes() for path in files if path.name.startswith("events_"))
        return [path for path in files if PASSWORD.encode() in path.read_bytes()]


@contextlib.contextmanager
def apart(folder: Path, s3_server: str, **theirs: str) -> Iterator[Apart]:
    """Start a cluster; only its workers have the variables `theirs`."""
    away, seen, name = folder / "away", folder / "seen", uuid.uuid4().hex[:12]
    away.mkdir()
    seen.mkdir()
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=name)
    with contextlib.ExitStack() as running:
        with pytest.MonkeyPatch.context() as patched:
            for variable, value in theirs.items():
                patched.setenv(variable, value)
            master = running.enter_context(standalone(seen, hidden=hidden_from_workers(away), workers=2))
        log = f"file://{seen}"
        events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log, "spark.eventLog.compress": "false"}
        project = Project(away / name, master, events)
        settings = {"s3_endpoint_url": s3_server, "tables_url": f"s3://{name}/tables", "small_group_bytes": 0}
        project.write("", {}, **settings, range_bytes=100 * 256)
        yield Apart(project, store, name, seen)


@pytest.mark.seed("DX1")
def test_executors_read_a_database_with_what_their_own_environment_has(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str, s3_server: str, s3_credentials: None
) -> None:
    """The executors know `crm`, as a user who may only read; they do not know `hr`."""
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg", password=PASSWORD)
    reader = f"reader_{uuid.uuid4().hex[:8]}"
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("create table people (id bigint, name text)"))
        filling = sa.text("insert into people select n, 'p' || n from generate_series(1, :rows) as n")
        connection.execute(filling, {"rows": ROWS})
        connection.execute(sa.text(f"create role {reader} login"))
        connection.execute(sa.text(f"grant select on people to {reader}"))
    as_reader, as_owner = (each.render_as_string(hide_password=False) for each in (url.set(username=reader), url))
    ours = dict.fromkeys(("DRAINMARK_DATABASES__CRM", "DRAINMARK_DATABASES__HR"), as_owner)
    with apart(tmp_path, s3_server, DRAINMARK_DATABASES__CRM=as_reader) as cluster:
        cluster.declare(QUERY.format(database="hr"))
        refused = cluster.project.drainmark("run", "app.py", "--attempts", "1", **ours)
        assert refused.error["id"] == "CLUSTER_REFUSED", refused.told
        for said in ("'people'", "DRAINMARK_DATABASES__HR"):
            assert said in refused.error["message"]
        assert "DRAINMARK_DATABASES__HR" in refused.error["remedy"]
        cluster.run("resume", "app/people")

        cluster.declare(QUERY.format(database="crm"))
        ran = cluster.project.drainmark("run", "app.py", "--attempts", "1", **ours)
        assert ran.code == 0, ran.told
        rows = cluster.rows("kept")
        assert sorted(row["id"] for row in rows) == list(range(1, ROWS + 1))
        assert all(row["place"] == (row["id"] - 1) % 400 for row in rows)
        assert list(Counter(row["who"] for row in rows)) == [reader]
        assert not [secret for secret in (PASSWORD, *canary.ALL) if secret in refused.told + ran.told]
        assert cluster.leaks() == []


@pytest.mark.kafka
@pytest.mark.skipif(broker.why_not() is not None, reason=broker.why_not() or "")
def test_executors_read_a_topic(tmp_path: Path, s3_server: str, s3_credentials: None) -> None:
    kafka = broker.Broker()
    try:
        kafka.create()
        topic = kafka.new_topic(2)
        for partition, first in enumerate((0, 1000)):
            kafka.send(topic, [json.dumps({"id": n}).encode() for n in range(first, first + ROWS)], partition)
        with apart(tmp_path, s3_server, KAFKA_PASSWORD=PASSWORD) as cluster:
            settings = cluster.project.folder / "drainmark.toml"
            main = f'[kafka.main]\n"bootstrap.servers" = "{kafka.servers}"\n"sasl.password" = "${{KAFKA_PASSWORD}}"\n'
            settings.write_text(settings.read_text() + main)
            cluster.declare(TOPIC.format(topic=topic))
            ran = cluster.project.drainmark("run", "app.py", KAFKA_PASSWORD=PASSWORD)
            assert ran.code == 0, ran.told
            found = sorted((row["id"], row["place"]) for row in cluster.rows("kept"))
            assert found == sorted((first + n, n) for first in (0, 1000) for n in range(ROWS))
            assert PASSWORD not in ran.told
            assert cluster.leaks() == []
    finally:
        kafka.remove()


@pytest.mark.seed("DX1")
def test_executors_fetch_what_was_pushed_to_a_bucket(tmp_path: Path, s3_server: str, s3_credentials: None) -> None:
    with apart(tmp_path, s3_server) as cluster:
        cluster.declare(PUSHED.format(bucket=cluster.bucket))
        cluster.run("scan", "app.py")
        lines = tmp_path / "rows"
        lines.write_text('{"id": 1}\n{"id": "one"}\n{"id": 3}\n')
        cluster.run("push", "app/people", str(lines))
        cluster.run("run", "app.py")
        assert sorted(row["id"] for row in cluster.rows("kept")) == [1, 3]
        assert [row["position"] for row in cluster.rows("app_quarantine")] == [2]


@pytest.mark.seed("DX1")
def test_versions_of_a_table_in_a_bucket_and_what_only_the_run_sees(
    tmp_path: Path, s3_server: str, s3_credentials: None
) -> None:
    """Tasks read the table in the bucket; they would not find a table and a database on the disk of the run."""
    rows = pa.table({"id": range(1, ROWS + 1), "name": [f"p{n}" for n in range(1, ROWS + 1)]})
    few_rows = WriterProperties(max_row_group_size=100)
    with apart(tmp_path, s3_server) as cluster:
        here, lite = cluster.project.folder / "stock", cluster.project.folder / "people.db"
        there = BucketFolder(cluster.store, f"s3://{cluster.bucket}", "others/stock")
        for uri, options in ((str(here), None), (there.uri, there.storage_options())):
            for part in (rows.slice(0, 400), rows.slice(400)):
                write_deltalake(uri, part, mode="append", storage_options=options, writer_properties=few_rows)
        with sqlite3.connect(lite) as database:
            database.execute("create table people (id integer, name text)")
            database.executemany("insert into people values (?, ?)", zip(*rows.to_pydict().values(), strict=True))
        (cluster.project.folder / "app.py").write_text(TABLES.format(bucket=cluster.bucket, away=here))
        cluster.run("run", "app.py", DRAINMARK_DATABASES__LITE=f"sqlite:///{lite}")
        for name in ("stored", "away", "lite"):
            found = sorted((row["id"], row["name"], row["place"]) for row in cluster.rows(f"kept_{name}"))
            assert found == [(n, f"p{n}", (n - 1) % 400) for n in range(1, ROWS + 1)], name
