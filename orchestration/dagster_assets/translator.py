"""The assets of a project as a code location wants them: other keys, groups, owners, tags, dependencies, automation.

Drainmark makes a specification of each asset, and a translator may return another one. Where events leave for Dagster,
they get the keys that the translator gave. The command line, which does not know the translator, finds these keys in
the registry, where the runs of Dagster leave them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import dagster as dg

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.workplace.workplace import looks

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace

_KEYS = "dagster_asset_keys"
"""Name of the cursor that has the keys of a region."""

Event = TypeVar("Event", bound=dg.AssetMaterialization | dg.AssetObservation)

Keys = Mapping[dg.AssetKey, dg.AssetKey]
"""The keys that a translator changed, by those that Drainmark gives: `[app, table]`."""


class DrainmarkTranslator:
    """Decides what the assets of a project are called, and who looks after them; derive from it.

    Example:
        class Warehouse(DrainmarkTranslator):
            def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                return spec.replace_attributes(key=spec.key.with_prefix("warehouse"), owners=["team:data"])
    """

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the specification of an asset; by default the one that Drainmark makes.

        Args:
            spec: key `[app, table]`, group, description, kinds, tags, dependencies, code version, and metadata:
                `drainmark/region`, and of the table of an operator `drainmark/operator` and `drainmark/operator_kind`.

        Returns:
            the same or another one, e.g. `spec.merge_attributes(owners=["team:data"])`. A key that changes also changes
            in what depends on the asset. A dependency may be added, on an asset of whatever kind.
        """
        return spec

    def get_pool(self, region: str) -> str | None:
        """Return the pool of Dagster that the run of a region takes a place of; None for none.

        Args:
            region: `app/start`.
        """
        return None

    def get_partitions(self, region: str) -> str | None:
        """Return how the tables of a region are cut into Dagster's partitions; None, the default, for not at all.

        Args:
            region: `app/start`.

        Returns:
            `file`: a partition for each file, which is sensible up to some 10 000 files; or the first day, as
            `2026-01-31`: a partition for each day from then on, in UTC, by the time at which a file was modified.
        """
        return None


class Translation:
    """The specifications of a code location, by the keys that Drainmark gives.

    Attributes:
        keys: those that changed.
        pool: the pool of a region.
        partitions: see `DrainmarkTranslator.get_partitions`.
    """

    def __init__(self, translator: DrainmarkTranslator, specs: Iterable[dg.AssetSpec]) -> None:
        """Translate the specifications.

        Raises:
            UsageError: the translator returned something else, or the same key twice.
        """
        self.pool = translator.get_pool
        self.partitions = translator.get_partitions
        self._specs = {spec.key: _translated(translator, spec) for spec in specs}
        self.keys: Keys = {key: spec.key for key, spec in self._specs.items() if spec.key != key}
        given: dict[dg.AssetKey, dg.AssetKey] = {}
        for key, spec in self._specs.items():
            if (other := given.setdefault(spec.key, key)) != key:
                both = f"{other.to_user_string()} and {key.to_user_string()}"
                msg = f"{type(translator).__name__}.get_asset_spec() gives {both} one key, {spec.key.to_user_string()}"
                raise UsageError(msg, remedy="give each asset a key of its own")

    def spec(self, key: dg.AssetKey) -> dg.AssetSpec:
        """Return the translated specification of an asset, whose dependencies have translated keys, too."""
        spec = self._specs[key]
        return spec.replace_attributes(deps=one_each(map(self._dep, spec.deps)))

    def key(self, key: dg.AssetKey) -> dg.AssetKey:
        """Return the translated key of an asset."""
        return self.keys.get(key, key)

    def _dep(self, dep: dg.AssetDep) -> dg.AssetDep:
        return dg.AssetDep(self.key(dep.asset_key), partition_mapping=dep.partition_mapping)


def eager() -> dg.AutomationCondition:  # type: ignore[type-arg]  # of assets and checks, as Dagster's own
    """Return `AutomationCondition.eager()` for assets behind a region's tables: the last file of a burst reaches them.

    Dagster's own forgets an update of a dependency that comes in the first tick after the one that requested the asset,
    or in the tick in which the asset's run ends. A region reports each group, and bursts of files do not wait for
    ticks, so that the last group is often such an update. Here an update is handled by a later request only. A run that
    is at work is waited for, and then the asset runs once more.

    Example:
        @dg.asset(deps=[["sales", "item_totals"]], automation_condition=eager())
        def report() -> None: ...
    """
    condition = dg.AutomationCondition
    # `since` lets a reset win over an update in the same tick. So there is no reset in a tick with an update.
    is_asked = condition.newly_requested() | condition.initial_evaluation()
    handled = (~condition.any_deps_updated() & is_asked).with_label("requested_after_the_update")
    return condition.eager().replace("handled", handled).with_label("eager_for_regions")


def one_each(deps: Iterable[dg.AssetDep]) -> list[dg.AssetDep]:
    """Return the last dependency on each asset: Dagster refuses two of one key that map partitions differently."""
    return list({dep.asset_key: dep for dep in deps}.values())


def _translated(translator: DrainmarkTranslator, spec: dg.AssetSpec) -> dg.AssetSpec:
    made = translator.get_asset_spec(spec)
    if not isinstance(made, dg.AssetSpec):
        msg = f"{type(translator).__name__}.get_asset_spec({spec.key.to_user_string()}) returned {made!r}"
        raise UsageError(msg, remedy="return an AssetSpec, such as the one that it was given")
    return made


def renamed(event: Event, keys: Keys) -> Event:
    """Return an event under the key that its asset has in the code location."""
    given = keys.get(event.asset_key)
    return event if given is None else cast(Event, event._replace(asset_key=given))


def remember_keys(workplace: Workplace, region: str, keys: Keys) -> None:
    """Leave the keys of a code location in the registry, for the events of the command line."""
    text = json.dumps(sorted((old.path, new.path) for old, new in keys.items()))
    known = workplace.registry.load_cursor(region, _KEYS)
    if text != (known or "[]"):
        workplace.registry.save_cursor(region, _KEYS, text)


def remembered_keys(workplace: Workplace, region: str) -> Keys:
    """Return the keys that the last run of Dagster left; none without such a run."""
    registry = looks(workplace)
    text = registry.load_cursor(region, _KEYS) if registry is not None else None
    return {dg.AssetKey(old): dg.AssetKey(new) for old, new in json.loads(text or "[]")}
