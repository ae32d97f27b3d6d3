"""A name in a catalogue of Spark for an existing Delta table: an external table, made once, never taken from another.

A name that is there already costs one look. Nothing is written to the table: its columns and properties come from its
own log. Only SQL and the catalog API are used, so this works the same with a Connect server and with a cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from drainmark.jobs.errors.environment import CatalogueFailed, NameTaken
from drainmark.jobs.errors.spark_faults import telling_line
from drainmark.jobs.frames.names import literal, quoted_name
from drainmark.jobs.protocol.records.addresses import S3, is_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = frozenset({"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"})
_NO_CATALOGUE = frozenset({"REQUIRES_SINGLE_PART_NAMESPACE", "CATALOG_NOT_FOUND"})
_DETAILS = "# Detailed Table Information"
_FILE = "file:"
_BUCKETS = ("s3:", "s3n:", "s3a:")


def register(session: SparkSession, name: str, uri: str) -> None:
    """Give a Delta table a name, unless it has that name already; create the schema if it does not exist.

    Args:
        name: `catalogue.schema.table`.
        uri: the table's folder, a path of this machine or `s3://…`.

    Raises:
        NameTaken: the name is that of another table, or of a view; nothing was changed.
        CatalogueFailed: the catalogue does not answer, or refuses.
    """
    from pyspark.errors import PySparkException

    wanted = _address(uri)
    catalogue, schema, table = name.split(".")
    try:
        found = _location(session, name)
        if found is None:
            _require_table(session, wanted)
            if not session.catalog.databaseExists(f"`{catalogue}`.`{schema}`"):
                session.sql(f"CREATE SCHEMA IF NOT EXISTS `{catalogue}`.`{schema}`")
            session.sql(
                f"CREATE TABLE IF NOT EXISTS `{catalogue}`.`{schema}`.`{table}` USING delta LOCATION {literal(wanted)}"
            )
            found = _location(session, name)  # another session may have made it first
    except PySparkException as error:
        raise _failure(error, name) from error
    if found is None or _place(found) != _place(wanted):
        other = f"the table at {found}" if found else "something that has no folder, such as a view"
        msg = f"{name} is already the name of {other}, and not of {uri}"
        raise NameTaken(msg, remedy=f"register={name!r}: take another name, or drop that one if nobody needs it")


def _require_table(session: SparkSession, address: str) -> None:
    """Check that the session finds a Delta table; if there is none, Spark would make an empty one."""
    quoted = address.replace("`", "``")
    session.sql(f"DESCRIBE DETAIL delta.`{quoted}`").collect()


def _location(session: SparkSession, name: str) -> str | None:
    """Return the folder of the table that has a name, "" if it has no folder (a view); None if the name is free."""
    from pyspark.errors import PySparkException

    quoted = ".".join(quoted_name(part) for part in name.split("."))
    try:
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {quoted}").collect()
    except PySparkException as error:
        if error.getCondition() in _MISSING:
            return None
        raise
    names = [row[0] for row in rows]
    if _DETAILS not in names:
        return ""
    start = len(names) - names[::-1].index(_DETAILS)  # a column may be called so, too
    return next((row[1] for row in rows[start:] if row[0] == "Location"), "")


def _failure(error: Exception, name: str) -> CatalogueFailed:
    catalogue = name.partition(".")[0]
    condition = getattr(error, "getCondition", lambda: None)()
    if condition in _NO_CATALOGUE:
        remedy = "register= begins with the name of a catalogue, such as spark_catalog; others are set in spark_conf"
        return CatalogueFailed(f"Spark knows no catalogue {catalogue}", remedy=remedy)
    remedy = f"check the catalogue {catalogue} and the rights of this session there; it is tried again"
    return CatalogueFailed(telling_line(str(error)), remedy=remedy)


def _address(uri: str) -> str:
    """Return a folder's address for Spark, always with a scheme: without one it means the cluster's file system."""
    if is_object(uri):
        return f"s3a://{uri.removeprefix(S3)}" if uri.startswith(S3) else uri
    return f"{_FILE}//{os.path.abspath(uri)}"


def _place(location: str) -> str:
    """Return a location in one spelling, so that two can be compared."""
    if location.startswith(_FILE):
        return os.path.realpath("/" + location.removeprefix(_FILE).lstrip("/"))
    scheme, colon, rest = location.rstrip("/").partition(":")
    return f"s3a:{rest}" if f"{scheme}{colon}" in _BUCKETS else f"{scheme}{colon}{rest}"
