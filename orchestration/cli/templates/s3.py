"""Objects of a bucket: the user fills in the bucket; the tests need none."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

APPLICATION = '''\
"""Orders in a bucket: each order once, and what each item has sold. Each object is one state.

Fill in the bucket here, and in `drainmark.toml` how it is reached.
"""

import drainmark as dm

BUCKET = "FILL-IN"  # the name of the bucket; no bucket is called so


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(
        path=f"s3://{BUCKET}/orders",  # a prefix of its own for each application
        pattern="*.json",
        format="json",  # an object a line
        schema="item string, pieces int",
        recursive=True,
    )
)
def orders(scanned):
    return scanned  # the columns of the schema, source_file, _sequence_id


items = dm.aggregate(orders, keys=["item"], values={"pieces": dm.sum("pieces")}, name="items")

dm.sink(orders, dm.DeltaAppend("orders"))
dm.sink(items, dm.DeltaUpsert("item_totals", keys=["item"]))
'''

ACCESS = f"""\
{SETTINGS}
# FILL IN what differs from AWS and its default profile. Credentials come as boto3 finds them: variables (AWS_*),
# profile, role; never from this file.
# s3_endpoint_url = "https://minio.example.com"
# s3_profile = "shop"
# s3_region = "eu-central-1"

# Checkpoints, state and sinks in a bucket, too; to be set before the first run, or not at all.
# tables_url = "s3://FILL-IN/tables"
"""

TEST = '''\
"""The application on files in memory; no bucket is asked.

`pip install 'drainmark[test]'`, and `pytest` runs it; `run_app` comes with Drainmark.
"""

from pathlib import Path

APPLICATION = Path(__file__).parents[1] / "app.py"


def test_each_object_is_one_consistent_state(run_app):
    tea, more = \'{"item": "tea", "pieces": 2}\\n\', \'{"item": "tea", "pieces": 1}\\n\'
    result = run_app(APPLICATION, {"a.json": tea, "b.json": more})
    assert [row["pieces"] for row in result.sink("item_totals", at=1)] == [2]
    assert [row["pieces"] for row in result.sink("item_totals")] == [3]
'''

TEMPLATE = Template(
    files={"app.py": APPLICATION, "drainmark.toml": ACCESS, "tests/test_app.py": TEST},
    first_steps=(
        "$EDITOR app.py drainmark.toml  # fill in the bucket, and how it is reached",
        "drainmark run && drainmark show item_totals",
    ),
)
