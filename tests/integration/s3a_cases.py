"""Objects that Spark reads directly from the bucket; `test_s3a_input.py` runs this in a process with S3A.

Only Spark's own reader can parse their formats, and no object of these groups may come to this process. Each case runs
the same objects through the spool in the same session, and the tables must be the same.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import canary
import pytest
from fault_proxy import FaultProxy, fault_proxy
from harness import rows, run_once, sinks
from integration.test_s3_input import Bucket, counted, spooled, statuses, word_count

from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3a import can_read, s3a_settings

PACKAGE = "org.apache.hadoop:hadoop-aws:3.5.0"

READINGS = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="{path}", pattern="*.csv*", recursive=True, format="csv",
                            options={{"header": "true", "multiLine": "true"}},
                            schema="sensor string, value double"))
def readings(scanned):
    return scanned

dm.sink(readings, dm.DeltaAppend("readings"))
"""


def settings(endpoint: str, home: Path, **more: Any) -> Settings:
    conf = {"spark.jars.packages": PACKAGE}
    return Settings(
        home=home, project_root=home.parent, s3_endpoint_url=endpoint, spark_conf=conf, small_group_bytes=0, **more
    )


class Spooling(ObjectStore):
    """A store that records which objects came to this machine's disk."""

    spooled: list[str]

    def fetch(self, bucket: str, key: str, *arguments: Any, **more: Any) -> None:
        self.spooled.append(key.removeprefix("in/"))
        super().fetch(bucket, key, *arguments, **more)


@pytest.fixture(scope="module")
def s3a(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """Yield a session that is started as `drainmark run` starts it."""
    found = settings(s3_server, tmp_path_factory.mktemp("s3a") / "home")
    engine = SparkEngine("local[2]", {**s3a_settings(found), **found.spark_conf}, found.home / "spark")
    yield engine
    engine.stop()


@pytest.fixture
def bucket(s3_server: str) -> Bucket:
    return Bucket(s3_server)


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_server) as server:
        yield server


@pytest.fixture
def place(s3a: SparkEngine, s3_server: str, proxy: FaultProxy, tmp_path: Path) -> Iterator[Callable[[str], Workplace]]:
    made: list[Workplace] = []

    def make(reader: str) -> Workplace:
        found = Workplace(settings(s3_server, tmp_path / reader, s3_reader=reader))
        found.use_engine(s3a)
        found._inputs = Inputs(
            spooling(proxy),
            spool_bytes=1 << 30,
            can_read=lambda address: can_read(s3a, address, found.settings),
        )
        made.append(found)
        return found

    yield make
    for workplace in made:
        workplace.registry.close()


def spooling(proxy: FaultProxy) -> Spooling:
    store = Spooling(proxy.url)
    store.spooled = []
    return store


def fetched(home: Workplace) -> list[str]:
    """Return the names of the objects that were fetched into the spool, sorted."""
    store = home.inputs.objects
    assert isinstance(store, Spooling)
    return sorted(set(store.spooled))


def whole_texts(bucket: Bucket, **scan: Any) -> Opened:
    """Open a word count of texts that are one row each; only Spark's reader can make such rows."""
    return word_count(bucket, options={"wholetext": "true", "lineSep": "|"}, **scan)


def test_objects_are_read_where_they_are(place: Callable[[str], Workplace], bucket: Bucket, proxy: FaultProxy) -> None:
    """Only the keys that Hadoop would change are fetched; compressed, empty and partitioned objects are not."""
    packed = gzip.compress(b"six")
    plain = {"a.txt": b"one two two", "day=2026-01-02/b.txt": b"two", "c.txt.gz": packed}
    odd = {"c d.txt": b"three", "_h.txt": b"four", "x[1]{2}.txt": b"five", "e%41:u.txt": b"six", "g//h.txt": b"ten"}
    for name, content in {**plain, **odd}.items():
        bucket.store.put(bucket.name, f"in/{name}", content)
    application = whole_texts(bucket, pattern="*.txt*", recursive=True)
    in_place, copied = place("s3a"), place("spool")
    run_once(in_place, application)
    assert fetched(in_place) == sorted(odd)
    assert not spooled(in_place)
    run_once(copied, application)
    assert fetched(copied) == sorted([*plain, *odd])
    assert sinks(in_place, "word_count/lines", ["word_counts"], ids=True) == sinks(
        copied, "word_count/lines", ["word_counts"], ids=True
    )
    assert counted(in_place) == {"one": 1, "two": 3, "three": 1, "four": 1, "five": 1, "six": 2, "ten": 1}


@pytest.mark.seed("I9", "I11", "I19")
def test_bad_rows_and_bad_files_are_quarantined_as_from_the_spool(
    place: Callable[[str], Workplace], bucket: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Tasks check the objects before Spark reads them; the quarantine names a row by its number."""
    for name, content in {
        "good.csv": b"sensor,value\na,1\nb,2\n",
        "rows.csv": b"sensor,value\na,1\nb,none\nc,3\nd,4,5\ne,6\n",
        "header.csv": b"value,sensor\n1,a\n",
        "packed.gz.csv": b"sensor,value\nf,7\n",
        "broken.csv.gz": b"this is not gzip",
    }.items():
        bucket.store.put(bucket.name, f"in/{name}", content)
    script = tmp_path / "readings.py"
    script.write_text(READINGS.format(path=bucket.uri))
    tables = []
    for reader in ("s3a", "spool"):
        home = place(reader)
        run_once(home, open_application(str(script)))
        assert fetched(home) == ([] if reader == "s3a" else ["good.csv", "packed.gz.csv", "rows.csv"])
        (name,) = (path.name for path in (home.home / "lake").iterdir() if path.name.endswith("_quarantine"))
        kept = rows(home, "readings/readings", name)
        for row in kept:
            row.pop("position")
        tables.append((sinks(home, "readings/readings", ["readings"], ids=True), sorted(map(repr, kept))))
        assert len(kept) == 4
    assert tables[0] == tables[1]


@pytest.mark.seed("I2", "D16")
@pytest.mark.parametrize("moment", ["before the read", "while it is read"])
def test_an_object_that_is_replaced_is_scanned_anew(
    place: Callable[[str], Workplace], bucket: Bucket, proxy: FaultProxy, moment: str
) -> None:
    """The etag of the object is compared before and after the read; no attempt is counted."""
    uri = bucket.put("a.txt", "old words")
    bucket.put("b.txt", "two")
    home, application = place("s3a"), whole_texts(bucket)
    scan_region(home, application.region())
    if moment == "before the read":
        bucket.put("a.txt", "new")
    else:
        heads: list[str] = []

        def replace_between(method: str, path: str, before: int) -> None:
            if method == "HEAD" and path.endswith("a.txt"):
                heads.append(path)
                if len(heads) == 2:
                    bucket.put("a.txt", "new")

        proxy.choose = replace_between
    run_once(home, application, scan=False)
    assert statuses(home, uri) == [TriggerStatus.SUPERSEDED]
    run_once(home, application)
    assert counted(home) == {"two": 1, "new": 1}
    assert home.history("word_count/lines").attempts == 0


def test_an_older_version_is_fetched(place: Callable[[str], Workplace], bucket: Bucket, proxy: FaultProxy) -> None:
    """S3A reads only the newest version, so an older one goes through the spool."""
    bucket.keep_versions()
    bucket.put("a.txt", "one")
    bucket.put("b.txt", "two")
    home, application = place("s3a"), whole_texts(bucket)
    scan_region(home, application.region())
    bucket.put("a.txt", "other")
    run_once(home, application, scan=False)
    assert counted(home) == {"one": 1, "two": 1}
    assert fetched(home) == ["a.txt"]


def test_no_credential_is_among_the_settings(s3a: SparkEngine) -> None:
    """Z5: the session finds the credentials by itself."""
    shown = str(s3a.session.sparkContext.getConf().getAll())
    assert "fs.s3a.endpoint" in shown
    assert not [secret for secret in canary.ALL if secret in shown]
