"""What made a table, in Dagster's terms: the code, the versions of its inputs, and the columns that each column is of.

The columns are found by a run, which has the analysed plans: the code location that loads the definitions has no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import dagster as dg

from drainmark.jobs.operators.joins.lookup import Lookup
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.protocol.records.state_generations import first_generation
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.analysis.column_lineage import Origins, column_lineage
from drainmark.orchestration.dagster_assets.assets import source_key
from drainmark.orchestration.dagster_assets.metadata import data_version
from drainmark.orchestration.dagster_assets.translator import Translation
from drainmark.orchestration.workplace.region_sources import tables_read

_NO_VERSION = "INITIAL"
"""Dagster's data version of an external asset of which no version was reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the events of a region say about the making of its tables.

    Attributes:
        inputs: by name of a source or lookup, the key of the asset that it reads.
        specs: the translated specifications of the region's tables, by the keys that Drainmark gives.
        external: keys of the region's sources.
    """

    inputs: Mapping[str, dg.AssetKey] = field(default_factory=dict)
    specs: Mapping[dg.AssetKey, dg.AssetSpec] = field(default_factory=dict)
    external: frozenset[dg.AssetKey] = frozenset()

    @classmethod
    def of(
        cls,
        region: RegionPlan,
        made: Mapping[str, dg.AssetKey],
        translation: Translation,
        own: Iterable[dg.AssetKey],
    ) -> Provenance:
        """Return what is known of a region.

        Args:
            made: the keys of the tables that regions make, by path.
            own: the keys of the region's tables.
        """
        inputs: dict[str, dg.AssetKey] = {}
        external = []
        for operator in region.run_order:
            table = next((made[each] for each in tables_read(operator) if each in made), None)
            if isinstance(operator, Source):
                external.append(translation.key(source_key(region, operator)))
                table = table or source_key(region, operator)
            if table is not None and isinstance(operator, Source | Lookup):
                inputs[operator.name] = translation.key(table)
        specs = {key: translation.spec(key) for key in own}
        return cls(inputs=inputs, specs=specs, external=frozenset(external))

    def tags(self, key: dg.AssetKey, epoch: int, last_id: int) -> dict[str, str]:
        """Return the tags of a table's event: its version, and the code and the input versions that made it.

        All tables of a region are of one state, and so of one version. Of a table that also depends on an asset of
        somebody else only its own version is told: Dagster takes an input without a version for a new dependency.

        Args:
            key: as Drainmark gives it.
        """
        version, spec = data_version(epoch, last_id), self.specs.get(key)
        if spec is None or spec.code_version is None:
            return version
        states, versions = {each.key for each in self.specs.values()}, dict[str, str]()
        for dep in spec.deps:
            if dep.asset_key not in states and dep.asset_key not in self.external:
                return version
            name = dep.asset_key.to_user_string()
            known = next(iter(version.values())) if dep.asset_key in states else _NO_VERSION
            versions |= {f"dagster/input_data_version/{name}": known, f"dagster/input_event_pointer/{name}": "NULL"}
        return {**version, "dagster/code_version": spec.code_version, **versions}

    def lineage(self, blueprint: Blueprint) -> dict[str, dg.TableColumnLineage]:
        """Return the lineage of the columns of each table that readers see, by name of the table.

        Columns of a table that no asset stands for are left out, such as those of a lookup that others write.
        """
        if not blueprint.results:  # it was made without Spark
            return {}
        return {
            first_generation(table): dg.TableColumnLineage({name: self._deps(found) for name, found in columns.items()})
            for table, columns in column_lineage(blueprint).items()
        }

    def _deps(self, origins: Origins) -> list[dg.TableColumnDep]:
        known = sorted(each for each in origins if each.operator in self.inputs)
        return [dg.TableColumnDep(self.inputs[each.operator], each.column) for each in known]
