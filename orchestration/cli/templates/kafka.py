"""Records of a Kafka topic: the user fills in the cluster; the tests need none; `send.py` sends a sample."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

APPLICATION = '''\
"""Orders from a Kafka topic: each record once, and what each item has sold. A range of offsets is one state.

Fill in the cluster in `drainmark.toml`, and topic and schema here. Needed: `pip install 'drainmark[kafka]'`.
`python send.py` sends the sample orders to the topic.
"""

import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.KafkaSource(
        "orders",  # the topic
        cluster="main",  # [kafka.main] in drainmark.toml says where it is
        format="json",  # an object a record; a record that does not fit the schema is quarantined
        schema="item string, pieces int",
        metadata=["partition", "offset"],
        start_from="earliest",  # used only by the first run; later runs continue from the checkpoint
    )
)
def orders(scanned):
    return scanned


items = dm.aggregate(orders, keys=["item"], values={"pieces": dm.sum("pieces")}, name="items")

dm.sink(orders, dm.DeltaAppend("orders"))
dm.sink(items, dm.DeltaUpsert("item_totals", keys=["item"]))
'''

CLUSTER = f"""\
{SETTINGS}
# FILL IN: where the brokers are, by the names that librdkafka has. A run is refused as long as nothing is said here.
# ${{VARIABLE}} stands for a variable of the environment, so that no password need be in this file.
# [kafka.main]
# "bootstrap.servers" = "localhost:9092"
# "security.protocol" = "SASL_SSL"
# "sasl.mechanism" = "SCRAM-SHA-512"
# "sasl.username" = "drainmark"
# "sasl.password" = "${{KAFKA_PASSWORD}}"
"""

SAMPLE = """\
{"item": "tea", "pieces": 2}
{"item": "cup", "pieces": 1}
{"item": "tea", "pieces": "two"}
{"item": "tea", "pieces": 1}
"""

SEND = '''\
"""Send the sample orders to the topic, a record a line: `python send.py`; those of a file: `python send.py FILE`.

The cluster is that of `drainmark.toml`. The topic has to be there, unless the brokers make what is missing.
"""

import os
import sys
import tomllib
from pathlib import Path

from confluent_kafka import Producer

PROJECT = Path(__file__).parent
TOPIC, CLUSTER = "orders", "main"  # as in app.py

settings = tomllib.loads((PROJECT / "drainmark.toml").read_text()).get("kafka", {}).get(CLUSTER)
if settings is None:
    sys.exit(f"fill in [kafka.{CLUSTER}] in drainmark.toml")
producer = Producer(
    {"message.timeout.ms": "10000", **{name: os.path.expandvars(value) for name, value in settings.items()}}
)
refused = []
file = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / "orders.jsonl"
lines = file.read_bytes().splitlines()
for line in lines:
    producer.produce(TOPIC, line, on_delivery=lambda error, record: refused.append(error) if error else None)
    producer.poll(0)
producer.flush()
if refused:
    taken = len(lines) - len(refused)
    sys.exit(f"topic {TOPIC} took {taken} of {len(lines)} records ({refused[0].str()}): is it there?")
print(f"{len(lines)} records are in topic {TOPIC}")
'''

TEST = '''\
"""The application on records in memory; no broker is asked.

`pip install 'drainmark[test]'`, and `pytest` runs them; `run_app` comes with Drainmark. A source that is named with a
list of records reads these, one after the other: each is one state. A dictionary is encoded in the source's format; a
text is a record as it is.
"""

from pathlib import Path

import drainmark as dm

APPLICATION = Path(__file__).parents[1] / "app.py"
TEA, CUP, MORE = {"item": "tea", "pieces": 2}, {"item": "cup", "pieces": 1}, {"item": "tea", "pieces": 1}


def pieces(rows):
    return {row["item"]: row["pieces"] for row in rows}


def test_each_record_is_one_consistent_state(run_app):
    result = run_app(APPLICATION, {"orders": [TEA, CUP, MORE]})
    assert pieces(result.sink("item_totals", at=2)) == {"tea": 2, "cup": 1}
    assert pieces(result.sink("item_totals")) == {"tea": 3, "cup": 1}
    assert [row["offset"] for row in result.sink("orders")] == [0, 1, 2]


def test_a_record_that_does_not_fit_is_quarantined(run_app):
    result = run_app(APPLICATION, {"orders": [TEA, "no JSON", '{"item": "tea", "pieces": "two"}', MORE]})
    assert pieces(result.sink("item_totals")) == {"tea": 3}
    assert len(result.quarantine()) == 2


def test_it_can_be_taken_back_and_replayed(run_app):
    result = run_app(APPLICATION, {"orders": [TEA, CUP]})
    result.add({"orders": [MORE]}).run()
    result.rewind(to=1)
    assert pieces(result.sink("item_totals")) == {"tea": 2}
    assert pieces(result.run().sink("item_totals")) == {"tea": 3, "cup": 1}


def test_failures_do_not_show():
    steps = ["process.staged", "checkpoint.after_commit", "publish.before_commit"]  # without them: every step
    dm.testing.assert_exactly_once(APPLICATION, {"orders": [TEA, CUP, MORE]}, fail_points=steps, groupings=[1, "all"])
'''

TEMPLATE = Template(
    files={
        "app.py": APPLICATION,
        "drainmark.toml": CLUSTER,
        "orders.jsonl": SAMPLE,
        "send.py": SEND,
        "tests/test_app.py": TEST,
    },
    first_steps=(
        "pip install 'drainmark[kafka]'",
        "$EDITOR drainmark.toml app.py  # fill in the cluster, the topic and its columns",
        "python send.py  # sends the sample orders to the topic",
        "drainmark run && drainmark show item_totals",
        "drainmark quarantine list app",
    ),
)
