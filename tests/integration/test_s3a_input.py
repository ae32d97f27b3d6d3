"""Objects that Spark reads directly from the bucket: when it does so, with the tables of the spool (D13-D17).

The cases themselves are in `s3a_cases.py`, because S3A can only be set when a session starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import canary
import pytest
from integration.test_s3_input import REGION, Bucket, word_count

from drainmark.jobs.errors import InputChanged, InputMissing, StoreRefused
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.s3a import can_read, s3a_settings

FETCH = "DRAINMARK_TEST_S3A"
JAR = ".ivy2*/jars/org.apache.hadoop_hadoop-aws-3.5.0.jar"
CASES = Path(__file__).parent / "s3a_cases.py"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("s3_credentials")
@pytest.mark.timeout(900)
def test_spark_reads_objects_where_they_are() -> None:
    if not (list(Path.home().glob(JAR)) or os.environ.get(FETCH)):
        pytest.skip(f"the jars of S3A are not in Ivy's cache; {FETCH}=1 fetches them, 690 MB")
    child = subprocess.run(
        [sys.executable, "-m", "pytest", str(CASES), "-q", "-p", "no:cacheprovider"],
        cwd=CASES.parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout[-6000:]
    assert "6 passed" in child.stdout


@pytest.mark.spark
def test_a_session_without_s3a_says_so_once(engine: SparkEngine, settings: Settings) -> None:
    """`auto` falls back to the spool, `s3a` is refused with a remedy, `spool` does not ask."""
    address = "s3a://bucket/a.txt"
    assert can_read(engine, address, settings) is False
    probed = dict(engine._probed)
    assert can_read(engine, address, settings.model_copy(update={"s3_reader": "spool"})) is False
    with pytest.raises(StoreRefused, match="S3AFileSystem") as refused:
        can_read(engine, address, settings.model_copy(update={"s3_reader": "s3a"}))
    assert "hadoop-aws" in str(refused.value.remedy)
    assert engine._probed == probed


@pytest.mark.usefixtures("s3_credentials")
def test_a_session_of_ours_is_led_to_the_store(settings: Settings) -> None:
    """Z5: endpoint and region are set, but no credential; nothing is set without the jar, or for a Connect server."""
    with_jar = settings.model_copy(
        update={"spark_conf": {"spark.jars.packages": "a:b:1,org.apache.hadoop:hadoop-aws:3.5.0"}}
    )
    assert s3a_settings(settings) == {}
    assert s3a_settings(with_jar.model_copy(update={"spark_master": "sc://host:1"})) == {}
    server = {"s3_endpoint_url": "http://127.0.0.1:9", "s3_region": "eu-west-1"}
    found = s3a_settings(with_jar.model_copy(update=server))
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"
    assert not [secret for secret in canary.ALL if secret in str(found)]
    assert not [name for name in found if "performance" in name]


@pytest.mark.seed("D16")
@pytest.mark.usefixtures("s3_credentials")
def test_only_what_was_scanned_is_left_in_place(s3_server: str, settings: Settings) -> None:
    """Replaced or deleted objects, and odd keys, are left to `place`, which reports them; later changes to `check`."""
    bucket = Bucket(s3_server)
    for name in ("a.txt", "b c.txt", "changed.txt", "gone.txt", "later.txt"):
        bucket.put(name, name)
    home = Workplace(settings.model_copy(update={"s3_endpoint_url": s3_server}))
    scan_region(home, word_count(bucket).region())
    triggers = home.registry.triggers.pending(REGION, 10)
    home.registry.close()
    bucket.put("changed.txt", "other")
    bucket.delete("gone.txt")
    inputs = Inputs(bucket.store, spool_bytes=1 << 20, can_read=lambda address: True)
    found = inputs.in_place([*triggers, triggers[0]])
    assert found == {
        0: f"s3a://{bucket.name}/in/a.txt",
        4: f"s3a://{bucket.name}/in/later.txt",
    }
    left = [triggers[index] for index in found]
    inputs.check(left)
    bucket.put("later.txt", "other")
    with pytest.raises(InputChanged, match="later"):
        inputs.check(left)
    bucket.delete("a.txt")
    with pytest.raises(InputMissing, match="in/a"):
        inputs.check(left)
    assert not Inputs(bucket.store, spool_bytes=1).in_place(triggers)
