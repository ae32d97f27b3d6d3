"""The entries of a table's log that commits of ours write: each is one file, which is put there whole or not at all.

An entry exists once, whoever else writes the same version: a link on a disk, a conditional put in a bucket. `deltalake`
reads tables and writes checkpoints of their logs. Its commits know no deletion vectors, demand features of readers that
a table does not use, and are not on the disk when they return.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.frames.arrow import delta_schema
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta.log.commit_log import entry_path, named_checkpoint
from drainmark.resources.delta.log.marked_files import APPEND_ONLY, FEATURE, is_append_only
from drainmark.resources.storage.folder import Folder

Action = Mapping[str, Any]
"""One action of an entry, such as `{"add": {…}}`."""

_OF_TYPES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""The features of readers and writers that columns of some types demand."""

_DEMANDING = re.compile(rf'"(?:type|elementType|keyType|valueType)":"({"|".join(_OF_TYPES)})"')

_OF_READERS = frozenset({FEATURE, *_OF_TYPES.values()})

_WRITABLE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "invariants",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType-preview",
        *_OF_READERS,
    }
)
"""The features of tables for which `write_entry` may write."""

_SINCE = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
    "columnMapping": 5,
    "identityColumns": 6,
}
"""The features that tables have by the version of their writers, if their protocol does not name features."""

_NAMING = 7
"""The version of writers from which on a protocol names features, if the table has any."""

_LEFT = "/!$&'()+,:;=@"
"""The characters beside letters and digits that stay in paths of the log, as `deltalake` writes them."""


def write_entry(
    folder: Folder,
    table: Any,
    region: str,
    version: int | None,
    changes: Sequence[Action],
    *,
    mark: Mapping[str, str] | None = None,
) -> None:
    """Commit actions as the entry that follows the version of an open `DeltaTable`, or not at all.

    Args:
        version: the region's `txnVersion`; None for a table outside of regions.
        mark: goes into the commitInfo.

    Raises:
        FileExistsError: there is another entry of this version, or was: then the new entry counts for nothing.
        SplitBrain: others let the table have a feature whose commits need more than these do, or take no removes.
    """
    _require_writable(folder, table)
    is_removing = any(action["remove"]["dataChange"] for action in changes if "remove" in action)
    if is_removing and is_append_only(table.metadata().configuration):
        msg = f"the table {folder} has the property {APPEND_ONLY}, so that no rows can leave it"
        raise SplitBrain(msg, remedy="unset the property, and leave the table to Drainmark", table=folder.uri)
    txn = [{"txn": {"appId": app_id(region), "version": version, "lastUpdated": _now()}}] if version is not None else []
    seen = int(table.version())
    _write(folder, seen + 1, "WRITE", [*txn, *changes], mark or {})
    if (last := named_checkpoint(folder)) > seen:  # the entry of this version may have been there, and be cleaned up
        raise FileExistsError(f"the log of {folder} has a checkpoint of version {last}, and not of {seen}")


def _require_writable(folder: Folder, table: Any) -> None:
    """Check that commits of ours may follow the version of an open `DeltaTable`.

    Raises:
        SplitBrain: others let the table have a feature whose commits need more than ours have.
    """
    unknown = sorted(_features_of(table) - _WRITABLE)
    if unknown:
        msg = f"the table {folder} has the feature {', '.join(unknown)}, which Drainmark cannot write"
        where = f"delta.`{folder.uri}`"
        last = {"domainMetadata", "columnMapping"}  # others build on them
        drops = "; ".join(f"ALTER TABLE {where} DROP FEATURE {n}" for n in sorted(unknown, key=lambda n: n in last))
        remedy = f"take it away with the program that gave it (Spark: {drops}), and leave the table to Drainmark"
        raise SplitBrain(msg, remedy=remedy, table=folder.uri)


def create(
    folder: Folder, region: str, schema_json: str, partition_by: Sequence[str], configuration: Mapping[str, str]
) -> None:
    """Write the first entry of a table, with the mark of a region.

    Raises:
        FileExistsError: there is a table.
    """
    schema = delta_schema(schema_json).to_json()  # no table is made of columns that nobody could read
    metadata = {
        "id": str(uuid.UUID(world.token())),
        "description": app_id(region),
        "format": _PARQUET,
        "schemaString": schema,
        "partitionColumns": list(partition_by),
        "createdTime": _now(),
        "configuration": dict(configuration),
    }
    features = _features_in(schema)
    protocol = _protocol(features, features) if features else {"minReaderVersion": 1, "minWriterVersion": 2}
    _write(folder, 0, "CREATE TABLE", [{"protocol": protocol}, {"metaData": metadata}], {})


_PARQUET: Mapping[str, Any] = {"provider": "parquet", "options": {}}


def _write(folder: Folder, version: int, operation: str, actions: Sequence[Action], mark: Mapping[str, str]) -> None:
    import pyarrow as pa

    about = {"timestamp": _now(), "operation": operation, "operationParameters": {}, "engineInfo": "drainmark", **mark}
    lines = (_text(action, separators=(",", ":")) for action in ({"commitInfo": about}, *actions))
    folder.write(entry_path(version), pa.py_buffer("".join(f"{line}\n" for line in lines).encode()))


def _text(value: Any, **options: Any) -> str:
    """Return a value as JSON, without escapes: `deltalake` reads an escaped pair of surrogates as another letter."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return text.encode(errors="backslashreplace").decode()  # half a pair, from the bounds of another engine, stays


def _now() -> int:
    """Return the time as the log has it, in milliseconds since 1970."""
    return int(world.now() * 1000)


# --- files --------------------------------------------------------------------------------------------------------


def add(file: StagedFile, *, data_change: bool) -> Action:
    """Return the action that adds a file, with its deletion vector if it has one."""
    value = {**_facts(file), "modificationTime": _now(), "dataChange": data_change, "stats": _statistics(file)}
    if file.vector is not None:
        value["stats"] = _not_tight(value["stats"])
        value["deletionVector"] = file.vector.to_log()
    return {"add": value}


def _not_tight(statistics: str) -> str:
    """Return statistics whose bounds may be those of rows that have left: engines that answer from bounds must know.

    Numbers keep all their digits: a bound of decimals that is rounded may shut out the rows that have it.
    """
    mark = world.token()
    known = json.loads(statistics, parse_float=lambda digits: f"{mark}{digits}")
    return re.sub(f'"{mark}([^"]*)"', r"\1", _text({**known, "tightBounds": False}))


def remove(file: StagedFile, added: Mapping[str, Any] | None, *, data_change: bool) -> Action:
    """Return the action that removes a file.

    Args:
        added: of the action that added it: what the file itself does not tell. Add and remove must name the same
            deletion vector, and the path by the same text.
    """
    known = {**_facts(file), **(added or {})}
    names = ("path", "partitionValues", "size", "deletionVector")
    kept = {name: known[name] for name in names if known.get(name) is not None}
    return {"remove": {**kept, "deletionTimestamp": _now(), "dataChange": data_change, "extendedFileMetadata": True}}


def text_of(path: str) -> str:
    """Return the text of a path in our entries. Where it has an escape, other writers have another text."""
    return urllib.parse.quote(path, safe=_LEFT)


def _facts(file: StagedFile) -> dict[str, Any]:
    return {"path": text_of(file.path), "partitionValues": file.values, "size": file.size}


def _statistics(file: StagedFile) -> str:
    """Return a file's statistics, from which engines answer queries: exact, and of `_sequence_id` at least."""
    if file.statistics:
        return file.statistics
    dead = file.vector.rows if file.vector is not None else 0
    statistics: dict[str, Any] = {"numRecords": file.rows + dead}
    if file.first_id is not None:
        statistics["minValues"] = {SEQUENCE_ID: file.first_id}
        statistics["maxValues"] = {SEQUENCE_ID: file.last_id}
        statistics["nullCount"] = {SEQUENCE_ID: 0}
    return json.dumps(statistics)


# --- columns, properties and features -----------------------------------------------------------------------------


def alter(
    table: Any,
    *,
    features: Collection[str] = (),
    configuration: Mapping[str, str] | None = None,
    added: Sequence[Mapping[str, Any]] = (),
) -> list[Action]:
    """Return the actions that give an open `DeltaTable` more features, other properties, or columns behind its own.

    Args:
        added: fields of columns, as JSON has them; the table gets the features that their types demand.
    """
    found, schema = table.metadata(), table.schema().to_json()
    if added:
        fields = [*json.loads(schema)["fields"], *added]
        schema = delta_schema(json.dumps({"type": "struct", "fields": fields})).to_json()
    value = {
        "id": str(found.id),
        "name": found.name,
        "description": found.description,
        "format": _PARQUET,
        "schemaString": schema,
        "partitionColumns": list(found.partition_columns),
        "createdTime": found.created_time,
        "configuration": {**found.configuration, **(configuration or {})},
    }
    metadata = {"metaData": {name: each for name, each in value.items() if each is not None}}
    has, wanted = _features_of(table), {*features, *(_features_in(schema) if added else ())}
    if wanted <= has:
        return [metadata]
    readers = wanted | {*(table.protocol().reader_features or ())}
    return [{"protocol": _protocol(readers, has | wanted)}, metadata]


def _protocol(readers: Collection[str], writers: Collection[str]) -> dict[str, Any]:
    named = {"readerFeatures": sorted(readers), "writerFeatures": sorted(writers)}
    return {"minReaderVersion": 3, "minWriterVersion": _NAMING, **named}


def _features_of(table: Any) -> set[str]:
    """Return the features that commits to a table must regard."""
    protocol = table.protocol()
    if protocol.min_writer_version >= _NAMING:
        return set(protocol.writer_features or ())
    return {name for name, since in _SINCE.items() if since <= protocol.min_writer_version}


def _features_in(schema_json: str) -> set[str]:
    """Return the features that the types of columns demand."""
    return {_OF_TYPES[kind] for kind in _DEMANDING.findall(schema_json)}
