"""Messages of Debezium's connectors, as their documentation shows them, and makers of more."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

POSTGRES = {
    "version": "3.0.0.Final", "connector": "postgresql", "name": "PostgreSQL_server", "ts_ms": 1559033904863,
    "ts_us": 1559033904863123, "ts_ns": 1559033904863123000, "snapshot": "false", "db": "postgres",
    "sequence": '["24023119","24023128"]', "schema": "public", "table": "customers", "txId": 555, "lsn": 24023128,
    "xmin": None,
}  # fmt: skip
MYSQL = {
    "version": "3.0.0.Final", "connector": "mysql", "name": "mysql-server-1", "ts_ms": 1465491411000,
    "snapshot": "false", "db": "inventory", "table": "customers", "server_id": 223344, "gtid": None,
    "file": "mysql-bin.000003", "pos": 484, "row": 0, "thread": 7, "query": None,
}  # fmt: skip
ORACLE = {
    "version": "3.0.0.Final", "connector": "oracle", "name": "server1", "ts_ms": 1520085154000, "snapshot": "false",
    "db": "ORCLPDB1", "txId": "6.28.807", "scn": "2122185", "commit_scn": "2122185", "rs_id": "001234.00012345.0124",
    "ssn": 1, "redo_thread": 1,
}  # fmt: skip
SQL_SERVER = {
    "version": "3.0.0.Final", "connector": "sqlserver", "name": "server1", "ts_ms": 1559729468470, "snapshot": "false",
    "db": "testDB", "schema": "dbo", "table": "customers", "change_lsn": "00000027:00000758:0003",
    "commit_lsn": "00000027:00000758:0005", "event_serial_no": "1",
}  # fmt: skip

FIELDS: Sequence[Mapping[str, Any]] = (
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {
        "type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"}, "field": "credit",
    },
    {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1, "field": "born"},
    {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp", "version": 1, "field": "seen"},
)  # fmt: skip
"""Of the table of the samples: `id int, name text, credit numeric(10,2), born date, seen timestamp`."""

COLUMNS = "id int, name string, credit decimal(10,2), born date, seen timestamp_ntz"


def schema_of(fields: Sequence[Mapping[str, Any]] = FIELDS) -> dict[str, Any]:
    """Return the schema of the envelope of rows with some fields."""
    row = {
        "type": "struct",
        "fields": [*fields],
        "optional": True,
        "name": "PostgreSQL_server.inventory.customers.Value",
    }
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {
                "type": "struct",
                "fields": [],
                "optional": False,
                "name": "io.debezium.connector.Source",
                "field": "source",
            },
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
        "optional": False,
        "name": "PostgreSQL_server.inventory.customers.Envelope",
    }


def envelope(
    op: str, row: Mapping[str, Any] | None, source: Mapping[str, Any] = POSTGRES, **more: Any
) -> dict[str, Any]:
    """Return the payload of a change; a row deleted is the one before."""
    sides = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    return {**sides, "source": {**source}, "op": op, "ts_ms": 1559033904961, "transaction": None, **more}


def message(payload: Any, fields: Sequence[Mapping[str, Any]] | None = None) -> bytes:
    """Return a message, in the envelope of a schema if its fields are given."""
    return json.dumps(payload if fields is None else {"schema": schema_of(fields), "payload": payload}).encode()


def decimal_bytes(value: Decimal, scale: int) -> str:
    """Return a decimal as Kafka Connect writes it: the bytes of Java's `BigInteger`, in base64."""
    number = int(value.scaleb(scale))
    size = next(size for size in range(1, 99) if -(1 << (8 * size - 1)) <= number < 1 << (8 * size - 1))
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def written(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table of the samples as PostgreSQL's connector writes it by default."""
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    found = dict(row)
    if (credit := row.get("credit")) is not None:
        found["credit"] = decimal_bytes(credit, 2)
    if (born := row.get("born")) is not None:
        found["born"] = (born - epoch.date()).days
    if (seen := row.get("seen")) is not None:
        found["seen"] = (seen - epoch) // dt.timedelta(microseconds=1)
    return found
