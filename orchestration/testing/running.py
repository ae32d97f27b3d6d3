"""`run_app`: an application run on files in memory, in a home of its own, and its results."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.graph.application import nearest
from drainmark.orchestration.runs.region_runs import probe_first_use, region_run
from drainmark.orchestration.testing.applications import App, application_from, open_on, outside_of, sources_of
from drainmark.orchestration.testing.crashing import suspended
from drainmark.orchestration.testing.files import Files, Inbox
from drainmark.orchestration.testing.processing import drive, scan, settings_of
from drainmark.orchestration.testing.topics import Topics, kafka_sources
from drainmark.orchestration.workplace.workplace import Opened, Workplace

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa

    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.group.group_report import GroupReport
    from drainmark.resources.spark.session import SparkEngine

_ID = "_sequence_id"

Tables = Mapping[str, "Sequence[Mapping[str, Any]] | pa.Table"]
"""Rows of the Delta tables that the application looks up, by name below `lake/`. Use an Arrow table if types matter."""


@dataclass(slots=True, kw_only=True)
class Result:
    """An application that has been run, its home and its input; it can be given more files, run again and rewound.

    Attributes:
        regions: those that `run` processes, in order.
        groups: the reports of all groups, of all runs so far.
        max_group: limit of the files in a group.
    """

    workplace: Workplace
    opened: Opened
    inbox: Inbox
    topics: Topics
    regions: Sequence[RegionPlan]
    max_group: int | None = None
    groups: list[GroupReport] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """Return DRAINMARK_HOME of the application."""
        return self.workplace.home

    # --- input and runs ----------------------------------------------------------------------------------------------

    def add(self, files: Files) -> Self:
        """Put further files into the inbox, or records into topics; `run` takes them.

        Raises:
            UsageError: see `put`.
        """
        self.put(files)
        return self

    def put(self, files: Files) -> list[Path | str]:
        """Write input, and return its places: paths of files, and `topic#offset` of records.

        Raises:
            UsageError: see `Inbox.add` and `Topics.add`.
        """
        given: Mapping[str, Any] = files if isinstance(files, Mapping) else {}
        records = {name: given[name] for name in given if name in self.topics.sources}
        if not records:
            return [*self.inbox.add(files)]
        found: list[Path | str] = [place for name, each in records.items() for place in self.topics.add(name, each)]
        others = {name: each for name, each in given.items() if name not in records}
        return [*found, *(self.inbox.add(others) if others else ())]

    def run(self) -> Self:
        """Scan and process until nothing is pending.

        Raises:
            DrainmarkError: the error that ended the run. The region was handed over; the next `run` is a new attempt.
        """
        for region in self.regions:
            scan(self.workplace, self.opened, region)
            run = region_run(self.workplace, self.opened, region, max_group=self.max_group)
            with suspended():
                probe_first_use(run)
            self.groups += drive(run)
        return self

    def rewind(self, to: int | str) -> Self:
        """Rewind state and every sink to a sequence id, or to the state of a file, by name; `run` replays the rest.

        Raises:
            RewindRefused: no state of that id or file is in force, or it is beyond the horizon.
        """
        from drainmark.orchestration.verbs.interventions import reset
        from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset

        target = RewindTarget(to=to) if isinstance(to, int) else RewindTarget(to_file=to)
        reset(self.workplace, plan_reset(self.workplace, self.region.name, target))
        return self

    def close(self) -> None:
        """Close the registry; the home stays on disk."""
        self.workplace.registry.close()

    # --- results -----------------------------------------------------------------------------------------------------

    @property
    def region(self) -> RegionPlan:
        """Return the only region.

        Raises:
            UsageError: there are several.
        """
        if len(self.regions) > 1:
            names = ", ".join(region.name for region in self.regions)
            raise UsageError(f"the application has several regions: {names}", remedy="run_app(..., region=NAME)")
        return self.regions[0]

    def arrow(self, table: str, at: int | None = None) -> pa.Table:
        """Return a sink as its readers see it now, or as of a sequence id; with the column `_sequence_id`.

        Rows of append sinks are in the order of the files, rows of upsert sinks in the order of their keys.

        Raises:
            UnknownName: no region of this application writes the table.
            RewindRefused: `at` is no effective committed id.
        """
        from drainmark.resources.checkpoints.as_of import RegionReader

        reader = RegionReader(self.workplace.settings, self._writer_of(table))
        return reader.visible(table) if at is None else reader.as_of(table, at)

    def pandas(self, table: str, at: int | None = None) -> pd.DataFrame:
        """Return `arrow` as a pandas frame."""
        frame: pd.DataFrame = self.arrow(table, at).to_pandas()
        return frame

    def sink(self, table: str, at: int | None = None, *, ids: bool = False) -> list[dict[str, Any]]:
        """Return the rows of a sink as `arrow` does, without `_sequence_id` unless `ids`."""
        return _rows(self.arrow(table, at), ids=ids)

    def state(self, operator: str, at: int | None = None, *, ids: bool = False) -> list[dict[str, Any]]:
        """Return the state of an operator, one row for each key, sorted by key; with the hidden parts of values.

        Raises:
            UnknownName: no such operator keeps state.
            RewindRefused: `at` is no effective committed id.
        """
        from drainmark.jobs.protocol.records.manifest import TableRole
        from drainmark.jobs.state.keyed_rows import last_per_key
        from drainmark.resources.checkpoints.as_of import RegionReader, in_order

        kept = {
            table.operator: (region.name, table)
            for region in self.regions
            for table in self.workplace.history(region.name).tables
            if table.role is TableRole.CHANGES
        }
        if operator not in kept:
            raise UnknownName(f"no operator {operator!r} keeps state", remedy=nearest(operator, list(kept)))
        region, table = kept[operator]
        changes = RegionReader(self.workplace.settings, region).as_of(table.name, at)
        return _rows(in_order(last_per_key(changes, table.keys), table), ids=ids)

    def quarantine(self, at: int | None = None) -> list[dict[str, Any]]:
        """Return the rows and files that could not be read, with their ids; `quarantine_table` has the columns."""
        return self.sink(self.region.quarantine, at, ids=True)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return the committed states in force, oldest first, as `drainmark history --json` gives them."""
        from drainmark.orchestration.inspection.status import history_entries

        return history_entries(self.workplace, self.region.name)

    @property
    def status(self) -> dict[str, Any]:
        """Return the status of the region, as `drainmark status --json` gives it; also before its first run."""
        from drainmark.orchestration.inspection.status import status_of

        return status_of(self.workplace, self.region.name)

    def _writer_of(self, table: str) -> str:
        written = {
            found.name.removeprefix("lake/"): region.name
            for region in self.regions
            for found in self.workplace.history(region.name).tables
        }
        if table not in written:
            raise UnknownName(f"no region writes a table {table!r}", remedy=nearest(table, list(written)))
        return written[table]


def run_app(
    app: App,
    files: Files | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    tables: Tables | None = None,
    max_group: int | None = None,
    region: str | None = None,
    home: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: SparkEngine | None = None,
) -> Result:
    """Run an application on files in memory until nothing is pending, in this process.

    Args:
        app: a name, module, path, function that declares, or Application.
        files: `{"a.txt": "to be"}`, rows instead of text, a folder, or either by source; None runs nothing yet. A
            `KafkaSource` that is named with a list of records, `{"orders": [{"item": "tea"}]}`, reads these instead of
            brokers; in an operator-driven region each record is a trigger of its own. A record is text, bytes, a row,
            or None (a tombstone); or a pair of its key and one of these.
        params: parameters of the application by name.
        tables: Delta tables that it looks up, by name.
        max_group: limit of the files in a group; by default that of the settings.
        region: run only this region; all by default.
        home: DRAINMARK_HOME; the inbox is beside it. A new temporary folder by default.
        settings: further settings by name, e.g. `{"small_group_bytes": 0}`. Databases of sinks that are not set here
            are SQLite files in the home; sinks write files below the home.
        engine: a Spark session instead of the one that the tests of this process share.

    Raises:
        DrainmarkError: the application does not compile, its input does not fit, a function is not row-wise, or an
            error ended the run.
    """
    result = prepared(
        app, files, params=params, tables=tables, region=region, home=home, settings=settings, engine=engine
    )
    result.max_group = max_group
    return result if files is None else result.add(files).run()


def prepared(
    app: App,
    files: Files | None,
    *,
    params: Mapping[str, Any] | None,
    tables: Tables | None,
    region: str | None,
    home: Path | None,
    settings: Mapping[str, Any] | None,
    engine: SparkEngine | None,
) -> Result:
    """Return an application opened on an empty inbox beside its home; nothing has run.

    Args:
        files: the input to be written later; sources that it gives records for read these instead of brokers.
    """
    from drainmark.orchestration.testing.session import shared_engine

    home = home or Path(tempfile.mkdtemp(prefix="drainmark-")) / "home"
    application = application_from(app)
    inbox = Inbox(home.parent / "inbox", sources_of(application))
    named = files if isinstance(files, Mapping) else {}
    topics = Topics(
        home.parent / "topics", {name: source for name, source in kafka_sources(application).items() if name in named}
    )
    opened = open_on(application, inbox.folders, params, topics.files)
    outside, given = outside_of(application), dict(settings or {})
    given["databases"] = {**outside.pop("databases"), **given.get("databases", {})}
    workplace = Workplace(settings_of(home, home.parent, **{**outside, **given}))
    workplace.use_engine(engine or shared_engine())
    for name, rows in (tables or {}).items():
        _write_table(home / "lake" / name, rows)
    regions = [opened.region(region)] if region else list(opened.plan.regions)
    return Result(workplace=workplace, opened=opened, inbox=inbox, topics=topics, regions=regions)


def _write_table(root: Path, rows: Sequence[Mapping[str, Any]] | pa.Table) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    root.mkdir(parents=True)
    found = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
    write_deltalake(str(root), found)


def _rows(table: pa.Table, *, ids: bool) -> list[dict[str, Any]]:
    from drainmark.jobs.formats.values.far_times import python_rows

    found = python_rows(table)
    return found if ids else [{name: value for name, value in row.items() if name != _ID} for row in found]
