"""The rows of a checkpoint table, written again: they name other files, and no value of a person is left in them.

Rows keep their order, their positions and their authors, so every id, epoch and fence stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced
from drainmark.jobs.protocol.digest import digest_of
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import split_txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.records.triggers import DIGESTS
from drainmark.resources.checkpoints.checkpoint_archive import (
    DIGEST_KEY,
    ROWS_PER_GROUP,
    LiveFile,
    newest_digest,
    stem_of,
)
from drainmark.resources.checkpoints.checkpoint_rows import POSITION_COLUMN, arrow_table, placed_rows
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.staging import Staging
from drainmark.resources.erasure.files import Renamed

if TYPE_CHECKING:
    import pyarrow as pa

_SAID = frozenset({"error", "reason", "late", "why"})
"""The entries of a row's detail that hold what sources, functions, databases and operators said."""

Placed = list[tuple[int, CheckpointRow]]


def rewrite(checkpoint: CheckpointTable, change: Callable[[CheckpointRow], CheckpointRow]) -> int:
    """Write the rows that change again, in one commit under the version that the table has.

    Returns:
        the number of rows that changed.

    Raises:
        CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `commits.commit`.
        Fenced: another owner committed meanwhile.
    """
    folder, region = checkpoint.folder, checkpoint.region
    opened = delta_tables.open_table(folder)
    version = commits.txn_version(opened, region) or 0
    sizes = file_lists.live_sizes(opened)
    parts = sorted(LiveFile.of(path) for path in sizes)
    found = {part: placed_rows(next(iter(folder.read_each([part.path]))), str(folder)) for part in parts}
    changed = {part: [(place, change(row)) for place, row in rows] for part, rows in found.items()}
    different = [part for part in parts if changed[part] != found[part]]
    digested = newest_digest(parts)
    if digested is not None and digested not in different:  # its digest has facts of all rows before it
        different = [*different, digested] if different else []
    if not different:
        return 0
    staging = Staging(folder, split_txn_version(version)[0], world.token())
    written: list[StagedFile] = []
    for part in different:
        footer = {DIGEST_KEY: _digest(changed, part)} if part == digested else None
        rows = _table(changed[part])
        stem = stem_of(part.tier, rows) if part.tier else "rows"
        written += staging.write(rows, stem, rows_per_group=ROWS_PER_GROUP, footer=footer)
    is_done = commits.replace(
        folder,
        region,
        version,
        replaced=[StagedFile(path=p.path, size=sizes[p.path], rows=0, first_id=None, last_id=None) for p in different],
        rewritten=written,
        writer=checkpoint.writer,
        verb="erase",
    )
    if not is_done:
        raise Fenced(f"another owner changed the checkpoint table of {region} during the erasure")
    return sum(before != after for part in different for before, after in zip(found[part], changed[part], strict=True))


def _digest(rows: Mapping[LiveFile, Placed], part: LiveFile) -> str:
    """Return the digest of all rows up to the newest of a file."""
    placed = sorted((entry for entries in rows.values() for entry in entries), key=lambda entry: entry[0])
    return digest_of(RegionHistory.from_rows(row for place, row in placed if place <= part.last))


def _table(placed: Placed) -> pa.Table:
    import pyarrow as pa

    rows = arrow_table([row for _, row in placed], 0)
    at = rows.schema.get_field_index(POSITION_COLUMN)
    return rows.set_column(at, POSITION_COLUMN, pa.array([place for place, _ in placed], pa.int64()))


# --- what changes in a row ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Erased:
    """What leaves the rows of a checkpoint table.

    Attributes:
        renamed: by name of a table.
        passed: names of tables that stay as they are.
        pushed: sources whose pushed rows leave: their slices give other bytes when they are read again.
    """

    person: Person
    renamed: Mapping[str, Renamed]
    passed: Collection[str] = ()
    pushed: Collection[str] = ()


def without(erased: Erased) -> Callable[[CheckpointRow], CheckpointRow]:
    """Return the change of a row: it names the files that were written again, and holds no value of the person.

    Bounds of columns leave every manifest: they are values of rows, and of no use once a group is published.
    """
    person, renamed = erased.person, erased.renamed

    def change(row: CheckpointRow) -> CheckpointRow:
        detail = dict(row.detail)
        if detail.get("manifest"):
            detail["manifest"] = _manifest(detail["manifest"], erased)
        if detail.get("restored"):
            detail["restored"] = [_replaced(each, erased) for each in detail["restored"]]
        if detail.get("images"):
            detail["images"] = [_image(each, renamed) for each in detail["images"]]
        for name in _SAID & detail.keys():
            detail[name] = _said(detail[name], person)
        identity = _undigested(row.trigger_identity, erased.pushed)
        is_same = detail == row.detail and identity == row.trigger_identity
        return row if is_same else replace(row, detail=detail, trigger_identity=identity)

    return change


def _undigested(identity: Mapping[str, Any] | None, pushed: Collection[str]) -> Mapping[str, Any] | None:
    if not identity or not set(pushed) & set(identity.get(DIGESTS) or {}):
        return identity
    left = {name: digest for name, digest in identity[DIGESTS].items() if name not in pushed}
    return {**{name: value for name, value in identity.items() if name != DIGESTS}, **({DIGESTS: left} if left else {})}


def _manifest(value: Mapping[str, Any], erased: Erased) -> dict[str, Any]:
    found = {name: part for name, part in value.items() if name != "statistics"}
    found["files"] = _files(value["files"], erased)
    found["images"] = [_image(each, erased.renamed) for each in value.get("images") or ()]
    if value.get("replaced"):
        found["replaced"] = _replaced(value["replaced"], erased)
    for name in ("late", "feeds", "sent"):
        if value.get(name):
            found[name] = _said(value[name], erased.person)
    return found


def _replaced(value: Mapping[str, Any], erased: Erased) -> dict[str, Any]:
    return {**value, "files": _files(value["files"], erased)}


def _files(value: Mapping[str, Any], erased: Erased) -> dict[str, Any]:
    return {
        name: [entry for file in files for entry in _in_place(file, erased.renamed.get(name, {}), erased.person)]
        if name not in erased.passed
        else files
        for name, files in value.items()
    }


def _in_place(file: Mapping[str, Any], renamed: Renamed, person: Person) -> Sequence[Mapping[str, Any]]:
    """Return the entries in the place of one of a file; none for a partition of the person alone that is long gone."""
    if file["path"] in renamed:
        return [new.to_json() for new in renamed[file["path"]]]
    values = json.loads(file["partition"]) if file.get("partition") else {}
    is_alone = values and all(
        any(str(values[name]) in each.values for name in each.among(values)) for each in person.conditions
    )
    return [] if is_alone else [file]


def _image(value: Mapping[str, Any], renamed: Mapping[str, Renamed]) -> dict[str, Any]:
    """Return an image with the files in place of its own; each of its runs has as many files as are left of it."""
    table = renamed.get(value["table"], {})
    files, counts, at = list(value["files"]), [], 0
    new: list[Mapping[str, Any]] = []
    for count in value.get("runs") or (len(files),):
        run = [
            entry
            for file in files[at : at + count]
            for entry in ([each.to_json() for each in table[file["path"]]] if file["path"] in table else [file])
        ]
        at, new = at + count, [*new, *run]
        counts.append(len(run))
    runs = {"runs": [count for count in counts if count]} if value.get("runs") else {}
    return {**value, "files": new, **runs}


def _said(value: Any, person: Person) -> Any:
    """Return a value of JSON in which no text holds a value of the person."""
    if isinstance(value, str):
        return person.without(value) if person.is_in(value.encode("utf-8", "surrogatepass")) else value
    if isinstance(value, Mapping):
        return {name: _said(part, person) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_said(part, person) for part in value]
    return value
