"""The allowed arguments of a `KafkaSource` and settings of its client; without a broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import UsageError
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.kafka.topic import client_settings
from drainmark.resources.settings import Settings, load_settings


@pytest.mark.seed("E54")
@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("TOPIC", {"topic": "a/b"}),
        ("KAFKA_SERVERS", {"bootstrap_servers": ""}),
        ("KAFKA_SERVERS", {"bootstrap_servers": "user:secret@host:9092"}),
        ("UNKNOWN_FORMAT", {"format": "avro"}),
        ("SCHEMA_MISSING", {"format": "json"}),
        ("SCHEMA_UNUSED", {"schema": "a int"}),
        ("READER_OPTION", {"format": "csv", "schema": "a int", "options": {"MODE": "DROPMALFORMED"}}),
        ("READER_OPTION", {"format": "csv", "schema": "a int", "options": {"header": "true"}}),
        ("READER_OPTION", {"format": "json", "schema": "a date", "options": {"dateFormat": "YYYY"}}),
        ("KAFKA_COLUMN", {"metadata": ["topic"]}),
        ("KAFKA_COLUMN", {"format": "json", "schema": "a int, `Offset` bigint", "metadata": ["offset"]}),
        ("UNKNOWN_POLICY", {"tombstones": "drop"}),
        ("UNKNOWN_POLICY", {"on_compacted": "ignore"}),
        ("START_FROM", {"start_from": "yesterday"}),
        ("START_FROM", {"start_from": "group"}),
        ("PARTITIONS", {"partitions": []}),
        ("PARTITIONS", {"partitions": [1, 1]}),
        ("PARTITIONS", {"partitions": [-1]}),
        ("MAX_MESSAGES", {"max_messages": 0}),
        ("MESSAGE_BYTES", {"message_bytes": True}),
    ],
)
def test_what_does_not_fit_is_refused(rule: str, arguments: dict[str, Any]) -> None:
    given = {"topic": "orders", "bootstrap_servers": "host.example:9092", **arguments}
    assert rule in {found for found, _, _ in dm.KafkaSource(**given).problems("operator-driven")}


@pytest.mark.seed("C23", "E54")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"cluster": "main", "bootstrap_servers": "", "group_id": "g", "start_from": "group"},
        {"format": "csv", "schema": "a int, key_of_it string", "metadata": ["key"], "options": {"sep": ";"}},
        {"format": "text", "start_from": "2026-01-02T03:04:05+01:00", "partitions": [0, 3]},
    ],
)
def test_what_fits_is_taken(arguments: dict[str, Any]) -> None:
    source = dm.KafkaSource(**{"topic": "orders", "bootstrap_servers": "host.example:9092", **arguments})
    assert list(source.problems("periodic")) == []


def test_the_fingerprint_names_no_address_and_no_group() -> None:
    given = {"group_id": "secret-group", "cluster": "secret-cluster"}
    assert "secret" not in repr(dm.KafkaSource("orders", "secret.example:9092", **given).fingerprint())


def test_columns_are_those_of_the_format_and_those_asked_for(settings: Settings) -> None:
    access = Workplace(settings).access("app/s")
    plain = dm.KafkaSource("t", "h:1").columns(access)
    assert plain == "value binary, `key` binary, `partition` int, `offset` bigint, `timestamp` timestamp"
    parsed = dm.KafkaSource("t", "h:1", format="json", schema="a int", metadata=["offset"])
    assert parsed.columns(access) == "a int, `offset` bigint"


def test_settings_of_a_cluster_may_use_variables_and_underscores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[kafka.main]\n"bootstrap.servers" = "h:1"\nsasl_password = "${KAFKA_PASSWORD}"\nlog_level = "7"\n'
    (tmp_path / "drainmark.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="KAFKA_PASSWORD"):
        load_settings()
    monkeypatch.setenv("KAFKA_PASSWORD", "hush-hush")
    settings = load_settings()
    conf = client_settings(settings, servers="", cluster="main")
    assert (conf["bootstrap.servers"], conf["sasl.password"]) == ("h:1", "hush-hush")
    assert client_settings(settings, servers="other:2", cluster="main")["bootstrap.servers"] == "other:2"
    assert (conf["log_level"], "log.level" in conf) == ("7", False), "librdkafka names it so"
    assert "hush" not in repr(settings)
    assert "hush" not in repr(Workplace(settings).access("app/s"))


@pytest.mark.parametrize(
    "clusters", [{}, {"main": {}}, {"main": {"bootstrap.servers": "h:1", "auto_offset_reset": "latest"}}]
)
def test_settings_that_decide_what_is_read_are_refused(tmp_path: Path, clusters: dict[str, dict[str, str]]) -> None:
    settings = Settings(home=tmp_path / "home", project_root=tmp_path, kafka=clusters)
    with pytest.raises(UsageError):
        client_settings(settings, servers="", cluster="main")


def test_without_the_client_it_is_said_what_to_install(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UsageError) as caught:
        Workplace(settings).access("app/s").kafka("t", servers="h:1", cluster=None)
    assert "drainmark[kafka]" in (caught.value.remedy or "")
