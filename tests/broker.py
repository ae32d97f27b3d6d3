"""A throw-away Kafka broker from its Maven jars: one node of KRaft on the loopback, in its own folder."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ports import free_ports

VERSION = "4.1.1"
_MODULE = ("org.apache.kafka", "kafka_2.13", VERSION)
_CACHE = Path.home() / ".cache" / "drainmark-tests" / f"kafka-{VERSION}"
_FETCH_SECONDS = 600
_START_SECONDS = 60
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
}


def why_not() -> str | None:
    """Return why no broker can be started here; None if one can."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed: pip install 'drainmark[kafka]'"
    if shutil.which("java") is None:
        return "there is no Java"
    return None


def jars() -> Path:
    """Return the folder of the broker's jars; the Ivy of PySpark fetches them once for each machine."""
    if not _CACHE.is_dir():
        _CACHE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE.parent) as scratch:
            _fetch(Path(scratch) / "jars")
            os.replace(Path(scratch) / "jars", _CACHE)
    return _CACHE


def _fetch(folder: Path) -> None:
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    (ivy,) = (Path(spark.origin).parent / "jars").glob("ivy-*.jar")
    names = f"{folder}/[organisation]_[artifact]-[revision].[ext]"
    command = ["java", "-jar", str(ivy), "-dependency", *_MODULE, "-confs", "default", "-types", "jar", "bundle"]
    done = subprocess.run(
        [*command, "-retrieve", names], capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
    )
    assert done.returncode == 0, f"the jars of {':'.join(_MODULE)} could not be fetched: {done.stdout[-2000:]}"
    assert list(folder.glob("*kafka_2.13-*.jar")), done.stdout[-2000:]


class Broker:
    """One broker; its topics survive `stop` and `start`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="drainmark-kafka-"))
        self.port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.folder / "data"),
        }
        self._settings = self.folder / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def create(self) -> None:
        """Format the disk and start."""
        cluster = uuid.uuid4().hex[:22]
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings)],
            capture_output=True, text=True, timeout=_START_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._await()

    def stop(self) -> None:
        """End the broker as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _java(self) -> list[str]:
        return ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*"]

    def _await(self) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            try:
                self.admin().list_topics(timeout=2)
            except KafkaException:
                assert time.monotonic() < deadline, "the broker does not answer"
            else:
                return

    # --- topics ------------------------------------------------------------------------------------------------------

    @functools.cache  # noqa: B019 - one broker a run
    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": "0"})

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic and return its name."""
        from confluent_kafka.admin import NewTopic

        given = {key.replace("_", "."): value for key, value in config.items()}
        _done(self.admin().create_topics([NewTopic(name, partitions, 1, config=given)]))
        self._await_leaders(name, partitions)
        return name

    def new_topic(self, partitions: int = 1, **config: str) -> str:
        """Make a topic with a new name; return the name."""
        return self.topic(f"t-{uuid.uuid4().hex[:12]}", partitions, **config)

    def delete_topic(self, name: str) -> None:
        _done(self.admin().delete_topics([name]))

    def add_partitions(self, name: str, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        _done(self.admin().create_partitions([NewPartitions(name, total)]))
        self._await_leaders(name, total)

    def _await_leaders(self, name: str, partitions: int) -> None:
        """Wait until every partition answers: the broker tells new partitions before they have a leader."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(name, each): OffsetSpec.latest() for each in range(partitions)}
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.admin().list_topics(name, timeout=10)  # the client uses its last list of partitions
                return _done(self.admin().list_offsets(wanted))
            except KafkaException:
                assert time.monotonic() < deadline, f"nobody leads the partitions of {name}"
                time.sleep(0.05)

    def drop_before(self, name: str, partition: int, offset: int) -> None:
        """Drop a partition's records below an offset, as retention does."""
        from confluent_kafka import TopicPartition

        _done(self.admin().delete_records([TopicPartition(name, partition, offset)]))

    def send(self, name: str, values: Iterable[bytes | None], partition: int = 0, **more: Any) -> None:
        """Append records to a partition; they are there when this returns."""
        producer = self.producer()
        for value in values:
            producer.produce(name, value=value, partition=partition, **more)
            producer.poll(0)
        assert producer.flush(30) == 0

    def send_all(self, name: str, values: Mapping[int, Iterable[bytes | None]]) -> None:
        for partition, records in values.items():
            self.send(name, records, partition)

    def transact(self, name: str, values: Iterable[bytes], partition: int = 0, *, commit: bool = True) -> None:
        """Append records in a transaction, which is committed or aborted."""
        producer = self.open_transaction(name, values, partition)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    def open_transaction(self, name: str, values: Iterable[bytes], partition: int = 0) -> Any:
        """Append records in a transaction that stays open; return its producer."""
        producer = self.producer(**{"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value=value, partition=partition)
        assert producer.flush(30) == 0
        return producer

    def producer(self, **conf: str) -> Any:
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.servers, "linger.ms": "1", "log_level": "0", **conf})

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of a group in a topic, by partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = self.admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result().topic_partitions
        return {each.partition: each.offset for each in found if each.topic == topic and each.offset >= 0}


def _done(asked: Mapping[Any, Any]) -> None:
    for future in asked.values():
        future.result(30)
