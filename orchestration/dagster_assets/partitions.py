"""The tables of a region in Dagster's partitions: one for each file of its input, or for each day. Off by default.

All tables of a region have the same ones, since a file may change each of them. A partition says that its files are
committed; a run of partitions reads their files again, as `drainmark backfill --again` does.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import urllib.parse
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from drainmark.jobs.errors import UsageError
from drainmark.jobs.printable import printable
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.triggers import RETRACTION
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.dagster_assets.assets import table_assets
from drainmark.orchestration.dagster_assets.metadata import data_version
from drainmark.orchestration.dagster_assets.translator import Keys, renamed
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.workplace.region_sources import has_folder, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace, looks

BY_FILE = "file"

_NOTE = "dagster_partitions"
"""Name of the cursor that has the partitions of a region."""

_NOT_IN_KEYS = ("%", "...", "\a", "\b", "\f", "\n", "\r", "\t", "\v", "\0")
_KEY_CHARACTERS = 400

_LOOKED_AT = 100
"""Newest states among which the newest file is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partitions of one region.

    Attributes:
        by: `file`, or the first day, as `2026-01-31`.
        root: of the project; the keys of files below it count from it.
    """

    region: str
    by: str
    root: Path

    @classmethod
    def of(cls, workplace: Workplace, region: RegionPlan, by: str | None) -> Partitions | None:
        """Return the partitions that a translator asks for; None for none.

        Raises:
            UsageError: `by` is neither `file` nor a day, or the input of the region has no such partitions.
        """
        if by is None:
            return None
        if by != BY_FILE:
            try:
                is_day = dt.date.fromisoformat(by).isoformat() == by
            except (TypeError, ValueError):
                is_day = False
            if not is_day:
                msg = f"the partitions of {region.name} are to be {by!r}"
                raise UsageError(msg, remedy='return "file", or the first day as "2026-01-31", or None')
        if not has_folder(region):
            msg = f"{region.name} has no partitions: no file is a trigger of it"
            raise UsageError(msg, remedy="return None for it")
        if by != BY_FILE and is_object(source_folder(workplace, source_of(region))):
            msg = f"{region.name} has no partitions by day: the identity of an object in a bucket has no time"
            raise UsageError(msg, remedy='return "file" or None for it')
        return cls(region=region.name, by=by, root=workplace.settings.project_root.resolve())

    @classmethod
    def remembered(cls, workplace: Workplace, region: str) -> Partitions | None:
        """Return those that the last run of Dagster left in the registry; None without such a run."""
        registry = looks(workplace)
        by = registry.load_cursor(region, _NOTE) if registry is not None else None
        return cls(region=region, by=by, root=workplace.settings.project_root.resolve()) if by else None

    @property
    def definition(self) -> dg.PartitionsDefinition[str]:
        if self.by == BY_FILE:
            return dg.DynamicPartitionsDefinition(name=self._name)
        return dg.DailyPartitionsDefinition(self.by, end_offset=1)  # also today

    @property
    def _name(self) -> str:
        return f"{dagster_name(self.region)}__files"

    def key(self, row: CheckpointRow) -> str | None:
        """Return the partition of a state; None if it has none, as one of a day before the first."""
        if row.kind is not RowKind.STATE or row.trigger_kind == RETRACTION or not row.trigger_uri:
            return None
        if self.by == BY_FILE:
            return self._file_key(row.trigger_uri)
        modified = (row.trigger_identity or {}).get("mtime_ns")
        if modified is None:
            return None
        day = dt.datetime.fromtimestamp(modified / 1e9, dt.UTC).date().isoformat()
        return day if self.by <= day <= dt.datetime.now(dt.UTC).date().isoformat() else None

    def _file_key(self, uri: str) -> str:
        key = uri.removeprefix(f"{self.root}/")
        if key != printable(key) or any(each in key for each in _NOT_IN_KEYS):
            key = urllib.parse.quote(key).replace("...", "%2E%2E%2E")
        if len(key) > _KEY_CHARACTERS:
            key = f"{key[:_KEY_CHARACTERS]}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}"
        return key

    def files(self, history: RegionHistory, keys: Collection[str]) -> list[str]:
        """Return the addresses of the files in force of some partitions."""
        wanted = set(keys)
        found = history.newest_by_uri().items()
        return sorted(uri for uri, number in found if self.key(history.states[number]) in wanted)

    def told(
        self, instance: dg.DagsterInstance, plan: RegionPlan, history: RegionHistory, ids: tuple[int, int], keys: Keys
    ) -> list[dg.AssetMaterialization]:
        """Return an event for each partition of each table that the states of some ids changed.

        The files among these partitions are known to Dagster then; days are known by themselves.

        Args:
            ids: the first and the last one.
            keys: those of assets that a translator changed.
        """
        newest: dict[str, CheckpointRow] = {}
        for number in range(ids[0], ids[1] + 1):
            row = history.states.get(number)
            if row is not None and (key := self.key(row)) is not None:
                newest[key] = row
        if self.by == BY_FILE and newest:
            instance.add_dynamic_partitions(self._name, list(newest))
        found = ((asset.key, key, row) for asset in table_assets(plan) for key, row in newest.items())
        return [renamed(_event(*each), keys) for each in found]

    def is_behind(self, instance: dg.DagsterInstance, history: RegionHistory) -> bool:
        """Say whether Dagster does not know the newest file: a run was killed before it said so, or Dagster is new."""
        if self.by != BY_FILE:
            return False
        found = [key for row in history.states.newest(_LOOKED_AT).values() if (key := self.key(row)) is not None]
        return bool(found) and not instance.has_dynamic_partition(self._name, found[-1])

    def add_all(self, instance: dg.DagsterInstance, history: RegionHistory) -> None:
        """Make the files that are committed known as partitions, without an event."""
        if self.by == BY_FILE and (numbers := history.newest_by_uri().values()):
            found = (self.key(history.states[number]) for number in sorted(numbers))
            instance.add_dynamic_partitions(self._name, [key for key in found if key is not None])


def _event(asset: dg.AssetKey, key: str, row: CheckpointRow) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset,
        partition=key,
        metadata={
            "drainmark/sequence_id": row.sequence_id,
            "drainmark/last_trigger": printable(row.trigger_uri or ""),
        },
        tags=data_version(row.epoch, row.sequence_id),
    )


def remember_partitions(
    workplace: Workplace,
    region: str,
    partitions: Partitions | None,
    history: RegionHistory,
    instance: dg.DagsterInstance,
) -> None:
    """Leave the setting of a region in the registry, for the command line; files that Dagster lacks are added.

    Args:
        partitions: those of the region's tables; None if they have none.
    """
    by = partitions.by if partitions is not None else ""
    is_new = by != (workplace.registry.load_cursor(region, _NOTE) or "")
    if partitions is not None and (is_new or partitions.is_behind(instance, history)):
        partitions.add_all(instance, history)
    if is_new:
        workplace.registry.save_cursor(region, _NOTE, by)
