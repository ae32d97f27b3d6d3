"""Changes of a database's table, as Debezium writes them: the table itself, its history, and sums over it."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

APPLICATION = '''\
"""The customers of a database, by the changes that Debezium captures: as they are now, as they were, and in sums.

`changes/` has a message a line, as a topic of Debezium has a message a record. To read the topic itself:

    dm.KafkaSource("server.public.customers", cluster="main", format="debezium", schema=CUSTOMER)

with `[kafka.main]` in `drainmark.toml`, and `pip install 'drainmark[kafka]'`. The page "Sources" of the documentation
says what else a connector may send, and which of its settings help.
"""

import drainmark as dm

CUSTOMER = "id bigint, name string, country string, credit decimal(12,2)"  # columns of the table
ADDED = ["_op", "_sequence", "_changed_at"]  # each change has them beside its row


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="changes", pattern="*.jsonl", format="debezium", schema=CUSTOMER))
def changes(scanned):
    return scanned


customers = dm.apply_changes(
    changes,
    keys=["id"],
    sequence_by="_sequence",  # the place in the database's log: changes may come in any order
    apply_as_deletes="_op = 'd'",
    except_columns=ADDED,
    name="customers",
)
history = dm.apply_changes(
    changes,
    keys=["id"],
    sequence_by="_changed_at",  # valid_from and valid_to are times
    apply_as_deletes="_op = 'd'",
    except_columns=ADDED,
    stored_as_scd_type=2,
    name="history",
)
countries = dm.aggregate(
    customers, keys=["country"], values={"customers": dm.count(), "credit": dm.sum("credit")}, name="countries"
)

dm.sink(customers, dm.DeltaUpsert("customers", keys=["id"]))
dm.sink(history, dm.DeltaUpsert("customer_history", keys=["id", "valid_from"]))
dm.sink(countries, dm.DeltaUpsert("customers_by_country", keys=["country"]))
'''

FIRST = """\
{"before":null,"after":{"id":1,"name":"Ann","country":"DE","credit":"100.00"},"source":{"connector":"postgresql",\
"lsn":101,"ts_ms":1767261600000},"op":"r"}
{"before":null,"after":{"id":2,"name":"Bob","country":"DE","credit":"50.00"},"source":{"connector":"postgresql",\
"lsn":101,"ts_ms":1767261600000},"op":"r"}
{"before":null,"after":{"id":3,"name":"Eve","country":"FR","credit":"7.50"},"source":{"connector":"postgresql",\
"lsn":120,"ts_ms":1767265200000},"op":"c"}
"""

SECOND = """\
{"before":null,"after":{"id":1,"name":"Ann","country":"FR","credit":"120.00"},"source":{"connector":"postgresql",\
"lsn":140,"ts_ms":1767348000000},"op":"u"}
{"before":{"id":2},"after":null,"source":{"connector":"postgresql","lsn":150,"ts_ms":1767351600000},"op":"d"}
null
{"before":null,"after":{"id":3,"name":"Eve","country":"FR","credit":"12,50"},"source":{"connector":"postgresql",\
"lsn":160,"ts_ms":1767355200000},"op":"u"}
"""

TEST = '''\
"""The application on changes in memory.

`pip install 'drainmark[test]'`, and `pytest` runs them; `run_app` comes with Drainmark. A row of a file has the columns
of the table, and may have those of a change: it becomes a message of Debezium.
"""

from pathlib import Path

import drainmark as dm

PROJECT = Path(__file__).parents[1]
APPLICATION = PROJECT / "app.py"
SAMPLE = {path.name: path.read_text() for path in sorted((PROJECT / "changes").glob("*.jsonl"))}


def change(number, operation, sequence, country="DE", credit="1.00"):
    row = {"id": number, "name": f"n{number}", "country": country, "credit": credit}
    return row | {"_op": operation, "_sequence": sequence, "_changed_at": None}


def by_country(rows):
    return {row["country"]: row["customers"] for row in rows}


def test_a_customer_moves_and_another_one_leaves(run_app):
    result = run_app(APPLICATION, SAMPLE)
    assert by_country(result.sink("customers_by_country", at=1)) == {"DE": 2, "FR": 1}
    assert by_country(result.sink("customers_by_country")) == {"FR": 2}
    assert [row["id"] for row in result.sink("customers")] == [1, 3]
    assert [row["is_current"] for row in result.sink("customer_history")] == [False, True, False, True]


def test_a_value_that_is_none_is_quarantined(run_app):
    (bad,) = run_app(APPLICATION, SAMPLE).quarantine()
    assert "12,50" in bad["raw"]


def test_changes_may_come_late(run_app):
    files = {"1.jsonl": [change(1, "c", 10), change(1, "d", 30)], "2.jsonl": [change(1, "u", 20)]}
    result = run_app(APPLICATION, files)
    assert result.sink("customers") == []


def test_failures_do_not_show():
    steps = ["process.staged", "checkpoint.after_commit", "publish.before_commit"]  # without them: every step
    dm.testing.assert_exactly_once(APPLICATION, SAMPLE, fail_points=steps, groupings=[1, "all"])
'''

TEMPLATE = Template(
    files={
        "app.py": APPLICATION,
        "drainmark.toml": SETTINGS,
        "changes/1.jsonl": FIRST,
        "changes/2.jsonl": SECOND,
        "tests/test_app.py": TEST,
    },
    first_steps=(
        "drainmark run && drainmark show customers",
        "drainmark show customers_by_country --at 1",
        "drainmark show customer_history",
        "drainmark quarantine list app",
    ),
)
