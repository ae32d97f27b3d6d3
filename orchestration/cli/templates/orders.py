"""Orders of a shop as CSV: a schema, an expectation, totals, and a quarantine for wrong rows."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

APPLICATION = '''\
"""Orders of a shop: each order once, and what each item has brought. Each file in `inbox` is one state."""

import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(
        path="inbox",
        pattern="*.csv",
        format="csv",
        options={"header": "true"},  # a file whose header names other columns is quarantined whole
        schema="number bigint, ordered_at timestamp, item string, pieces int, price decimal(10, 2)",
    )
)
def orders(scanned):
    return scanned  # the columns of the schema, source_file, _sequence_id


# A row that cannot be read, or of which this does not hold, goes to the quarantine with file, line and reason.
valid = dm.expect(orders, "pieces > 0 and price >= 0", name="valid")


@dm.functor  # row by row; the parameter names the upstream operator
def priced(valid):
    return valid.withColumn("amount", (F.col("pieces") * F.col("price")).cast("decimal(12, 2)"))


items = dm.aggregate(
    priced,
    keys=["item"],
    values={"orders": dm.count(), "pieces": dm.sum("pieces"), "amount": dm.sum("amount")},
    name="items",
)

dm.sink(priced, dm.DeltaAppend("orders"))
dm.sink(items, dm.DeltaUpsert("item_totals", keys=["item"]))
'''

SATURDAY = """\
number,ordered_at,item,pieces,price
1,2026-01-31T09:00:00Z,tea,2,4.50
2,2026-01-31T09:20:00Z,cup,1,7.00
3,2026-01-31T10:05:00Z,tea,one,4.50
"""

SUNDAY = """\
number,ordered_at,item,pieces,price
4,2026-02-01T11:00:00Z,tea,1,4.50
5,2026-02-01T11:30:00Z,cup,-1,7.00
"""

TEST = '''\
"""The application on files in memory: what it adds up, what it refuses, that failures do not show.

`pip install 'drainmark[test]'`, and `pytest` runs them; `run_app` comes with Drainmark.
"""

from decimal import Decimal
from pathlib import Path

import drainmark as dm

APPLICATION = Path(__file__).parents[1] / "app.py"
HEADER = "number,ordered_at,item,pieces,price\\n"
FILES = {
    "a.csv": HEADER + "1,2026-01-31T09:00:00Z,tea,2,4.50\\n2,2026-01-31T09:01:00Z,tea,-1,4.50\\n",
    "b.csv": HEADER + "3,2026-02-01T09:00:00Z,tea,1,4.50\\n",
}


def test_amounts_add_up_and_wrong_rows_do_not_count(run_app):
    result = run_app(APPLICATION, FILES)
    assert [row["amount"] for row in result.sink("item_totals", at=1)] == [Decimal("9.00")]
    assert [row["amount"] for row in result.sink("item_totals")] == [Decimal("13.50")]
    assert sorted(row["number"] for row in result.sink("orders")) == [1, 3]


def test_failures_do_not_show():
    steps = ["process.staged", "checkpoint.after_commit", "publish.before_commit"]  # without them: every step
    dm.testing.assert_exactly_once(APPLICATION, FILES, fail_points=steps, groupings=[1, "all"])
'''

TEMPLATE = Template(
    files={
        "app.py": APPLICATION,
        "drainmark.toml": SETTINGS,
        "inbox/1-saturday.csv": SATURDAY,
        "inbox/2-sunday.csv": SUNDAY,
        "tests/test_app.py": TEST,
    },
    first_steps=(
        "drainmark run && drainmark show item_totals",
        "drainmark show item_totals --at 1",
        "drainmark quarantine list app",
    ),
)
