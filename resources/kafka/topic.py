"""Kafka's topics behind the interface `jobs.operators.sources.kafka_topic.Topic`, with confluent-kafka.

Each process has one client for each cluster, which asks for offsets; a consumer lives as long as a read. It reads given
offsets and is not a member of a group, so nothing rebalances. This module does not store the position of a region.

Spark's connector is not used: a tick needs offsets without a JVM, so this client is there in any case; and the
connector knows no topic ids: from a topic that was deleted and made again it reads the old offsets, without an error.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import StoreRefused, StoreUnavailable, UsageError
from drainmark.jobs.errors.environment import extra
from drainmark.jobs.operators.sources.kafka_topic import Offsets, TopicGone, TopicLook
from drainmark.resources.kafka.consumer import PartitionReads, others_from

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.operators.sources.kafka_topic import OffsetRange, Stood
    from drainmark.resources.settings import Settings

REQUEST_SECONDS = 10.0
"""The time that a broker has to answer: well within the time limit of a sensor."""

_COMMIT_SECONDS = 5.0
_POLICY_SECONDS = 60.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_OURS = frozenset(
    {
        "group.id", "group.instance.id", "group.protocol", "enable.auto.commit", "enable.auto.offset.store",
        "auto.commit.interval.ms", "auto.offset.reset", "isolation.level", "enable.partition.eof", "check.crcs",
    }
)  # fmt: skip
"""Settings that decide which records are read; users must not set them."""

_GONE = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID")
_REFUSED = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_INVALID_ARG", "_SSL")


def client_settings(settings: Settings, *, servers: str, cluster: str | None) -> dict[str, str]:
    """Return the configuration of a client for a cluster.

    Raises:
        UsageError: the settings have no such cluster or an option that users must not set, or no address is given.
    """
    given: Mapping[str, str] = {}
    if cluster is not None:
        given = cluster_of(settings.kafka, cluster)
    return client_conf(given, servers=servers, cluster=cluster)


def cluster_of(clusters: Mapping[str, Mapping[str, str]], name: str) -> Mapping[str, str]:
    """Return the settings of a cluster.

    Raises:
        UsageError: there is no such cluster.
    """
    if name not in clusters:
        remedy = f'add [kafka.{name}] to drainmark.toml, with "bootstrap.servers" and the other options of its clients'
        raise UsageError(f"no Kafka cluster {name!r} is set", remedy=remedy)
    return clusters[name]


def client_conf(settings: Mapping[str, str], *, servers: str, cluster: str | None) -> dict[str, str]:
    """Return the configuration of a client from the settings of its cluster; they are empty if only servers are given.

    Raises:
        UsageError: the settings have an option that users must not set, or no address is given.
    """
    given = {name.lower().replace("_", "."): value for name, value in settings.items()}
    given |= {"log_level": given.pop("log.level")} if "log.level" in given else {}  # the one name that has `_`
    if wrong := sorted(_OURS & set(given)):
        msg = f"the setting kafka.{cluster} has {', '.join(wrong)}, which would change the records that are read"
        raise UsageError(msg, remedy="take it out: see start_from and group_id of the source")
    if servers:
        given["bootstrap.servers"] = servers
    if not given.get("bootstrap.servers"):
        raise UsageError("nothing says where the Kafka brokers are", remedy=f"set bootstrap.servers in kafka.{cluster}")
    return {"client.id": "drainmark", "log_level": "2", **given}


@dataclass(slots=True)
class KafkaTopic:
    """One topic.

    Args:
        conf: as `client_settings` returns it.
    """

    name: str
    conf: Mapping[str, str] = field(repr=False)

    def look(self) -> TopicLook:
        library, admin = self._library, self._admin
        description = self._described()
        partitions = [self._partition(each.id) for each in description.partitions]
        with self._answering(is_there=True):
            wanted = {"isolation_level": library.IsolationLevel.READ_COMMITTED, "request_timeout": REQUEST_SECONDS}
            spec = library.admin.OffsetSpec
            asked = [
                admin.list_offsets(dict.fromkeys(partitions, which), **wanted)
                for which in (spec.earliest(), spec.latest())
            ]
            first, end = ({each.partition: told.result() for each, told in answers.items()} for answers in asked)
        look = TopicLook(
            identity=_identity(description),
            first={partition: told.offset for partition, told in first.items()},
            end={partition: told.offset for partition, told in end.items()},
            epochs={partition: told.leader_epoch for partition, told in end.items() if _is_known(told.leader_epoch)},
        )
        _looks[os.getpid(), self._key] = (time.monotonic(), look)
        return look

    def kept_look(self, seconds: float) -> TopicLook | None:
        taken_at, look = _looks.get((os.getpid(), self._key), (float("-inf"), None))
        return look if time.monotonic() - taken_at <= seconds else None

    def is_compacted(self) -> bool:
        key = (os.getpid(), self._key)
        asked_at, answer = _policies.get(key, (float("-inf"), False))
        if time.monotonic() - asked_at > _POLICY_SECONDS:
            answer = self._is_compacted()
            _policies[key] = (time.monotonic(), answer)
        return answer

    def _is_compacted(self) -> bool:
        config = self._library.admin.ConfigResource
        resource = config(config.Type.TOPIC, self.name)
        try:
            with self._answering():
                asked = self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
                policy = asked[resource].result()["cleanup.policy"].value or ""
        except StoreRefused:
            return False  # a user with the right to read records may lack the right to read this option
        return "compact" in policy

    def at_time(self, moment: dt.datetime) -> Offsets:
        spec = self._library.admin.OffsetSpec.for_timestamp(int(moment.timestamp() * 1000))
        partitions = [self._partition(each.id) for each in self._described().partitions]
        level = self._library.IsolationLevel.READ_COMMITTED
        with self._answering(is_there=True):
            asked = self._admin.list_offsets(
                dict.fromkeys(partitions, spec), isolation_level=level, request_timeout=REQUEST_SECONDS
            )
            return {each.partition: told.result().offset for each, told in asked.items()}

    def committed(self, group: str) -> Offsets:
        with self._answering():
            wanted = self._library.ConsumerGroupTopicPartitions(group)
            asked = self._admin.list_consumer_group_offsets([wanted], request_timeout=REQUEST_SECONDS)
            found = asked[group].result().topic_partitions
        return {each.partition: each.offset for each in found if each.topic == self.name and each.offset >= 0}

    def commit(self, group: str, offsets: Offsets) -> None:
        partitions = [self._partition(partition, offset) for partition, offset in offsets.items()]
        with self._answering():
            wanted = self._library.ConsumerGroupTopicPartitions(group, partitions)
            asked = self._admin.alter_consumer_group_offsets([wanted], request_timeout=_COMMIT_SECONDS)
            for each in asked[group].result().topic_partitions:
                if each.error is not None:
                    raise self._library.KafkaException(each.error)

    def others_from(self, stood: Sequence[Stood]) -> Offsets:
        """See `Topic`. An unchanged partition stays unchanged until its next leader, so the answer is cached."""
        keys = {each.partition: (os.getpid(), self._key, each.partition) for each in stood}
        asked = [each for each in stood if _intact.get(keys[each.partition]) != each]
        found = {each.partition: each.offset for each in stood}
        if asked:
            with self._answering(is_there=True):
                found |= others_from(self._library, self.conf, self.name, asked)
        _intact.update({keys[each.partition]: each for each in stood if found[each.partition] == each.offset})
        return found

    def read(self, identity: str, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._require(identity)
        with self._answering():
            reads = PartitionReads(library=self._library, conf=self.conf, topic=self.name, columns=columns)
            try:
                for wanted in ranges:
                    yield from reads.read(wanted, self._end_of)
            finally:
                reads.close()
        self._require(identity)  # a topic recreated during the read would give other records at the same offsets

    def _require(self, identity: str) -> None:
        now = _identity(self._described())
        if identity and now and identity != now:
            raise TopicGone

    def _end_of(self, partition: int) -> int:
        return self.look().end.get(partition, 0)

    def _described(self) -> Any:
        library = self._library
        with self._answering():
            asked = self._admin.describe_topics(library.TopicCollection([self.name]), request_timeout=REQUEST_SECONDS)
            return asked[self.name].result()

    def _partition(self, number: int, offset: int | None = None) -> Any:
        kind = self._library.TopicPartition
        return kind(self.name, number) if offset is None else kind(self.name, number, offset)

    @contextmanager
    def _answering(self, *, is_there: bool = False) -> Iterator[None]:
        """Turn errors of the client into errors that a region raises, such as `StoreUnavailable` for a temporary one.

        Args:
            is_there: the brokers have just described the partitions; a broker that does not know them yet will soon.
        """
        try:
            yield
        except self._library.KafkaException as error:
            told = telling(error.args[0], self.name)
            if is_there and isinstance(told, TopicGone):
                told = unanswered(error.args[0], self.name)
            raise told from error

    @property
    def _key(self) -> tuple[str, frozenset[tuple[str, str]]]:
        return self.name, frozenset(self.conf.items())

    @property
    def _admin(self) -> Any:
        return _admin(os.getpid(), frozenset(self.conf.items()))

    @property
    def _library(self) -> Any:
        return kafka_library()


_looks: dict[Any, tuple[float, TopicLook | None]] = {}
_intact: dict[Any, Stood] = {}
_policies: dict[Any, tuple[float, bool]] = {}


def kafka_library() -> Any:
    """Return confluent-kafka.

    Raises:
        UsageError: it is not installed.
    """
    with extra("kafka", "confluent-kafka, which a KafkaSource reads with, is missing"):
        import confluent_kafka
        import confluent_kafka.admin
    return confluent_kafka


@functools.lru_cache(maxsize=16)
def _admin(_process: int, conf: frozenset[tuple[str, str]]) -> Any:
    """Return the client of a cluster; its connections outlive a tick. `_process` is the pid: a fork has no threads."""
    from confluent_kafka.admin import AdminClient

    try:
        return AdminClient(dict(conf))
    except Exception as error:
        msg = f"these are no settings of a Kafka client: {error}"
        raise UsageError(msg, remedy="look at the setting kafka") from None


def telling(error: Any, topic: str) -> Exception:
    """Return the error that a region raises for a client's error."""
    name = error.name()
    if name in _GONE:
        return TopicGone()
    said = f"topic {topic}: {error.str()}"
    if name in _REFUSED or name.endswith("_AUTHORIZATION_FAILED"):
        remedy = "check the setting kafka, and the right to read the topic"
        return StoreRefused(f"Kafka refuses: {said}", remedy=remedy)
    return unanswered(error, topic)


def unanswered(error: Any, topic: str) -> StoreUnavailable:
    """Return the error that a region raises if a broker cannot answer now."""
    remedy = "a new attempt starts by itself; look at the brokers"
    return StoreUnavailable(f"Kafka does not answer: topic {topic}: {error.str()}", remedy=remedy)


def _identity(description: Any) -> str:
    found = str(description.topic_id) if description.topic_id is not None else ""
    return "" if found == _NO_ID else found


def _is_known(epoch: int | None) -> bool:
    return epoch is not None and epoch >= 0
