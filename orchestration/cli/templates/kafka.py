"""Records of a Kafka topic; `drainmark.toml` has the place where the cluster is to be filled in."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

APPLICATION = '''\
"""Orders from a Kafka topic: each record once, and what each item has sold. A range of offsets is one state.

Fill in the cluster in `drainmark.toml`, and topic and schema here. Needed: `pip install 'drainmark[kafka]'`.
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
        start_from="earliest",  # of the very first run alone; then the region's own checkpoints say
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

TEMPLATE = Template(
    files={"app.py": APPLICATION, "drainmark.toml": CLUSTER},
    first_steps=(
        "pip install 'drainmark[kafka]'",
        "$EDITOR drainmark.toml app.py  # fill in the cluster, the topic and its columns",
        "drainmark run && drainmark show item_totals",
    ),
)
