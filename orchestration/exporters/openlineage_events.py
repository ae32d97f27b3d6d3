"""OpenLineage events about groups and rewinds of a region, as values; needs the extra `openlineage`."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import attr
from openlineage.client import event_v2 as ol
from openlineage.client import facet_v2 as facets

from drainmark.orchestration.exporters.datasets import Dataset
from drainmark.orchestration.exporters.known_lineage import Origin, Output
from drainmark.orchestration.workplace.workplace import drainmark_version

FACETS = "urn:drainmark:facets:1#/$defs/"
"""The schema of Drainmark's own facets; it is `docs/how-to/openlineage-facets.json`."""


_installed = cache(drainmark_version)


def producer() -> str:
    """Return what events and facets name as their producer."""
    return f"urn:drainmark:{_installed()}"


@attr.define
class GroupRunFacet(facets.RunFacet):  # type: ignore[misc]
    """The sequence ids of a group, and what became of its rows.

    `replaced`: by id that the group withdraws, the id in its place; of a retraction, the id of the retraction.
    """

    region: str
    epoch: int
    firstSequenceId: int
    lastSequenceId: int
    rowsIn: int | None = None
    rowsQuarantined: int | None = None
    replaced: dict[str, int] | None = None

    @staticmethod
    def _get_schema() -> str:
        return f"{FACETS}GroupRunFacet"


@attr.define
class RewindRunFacet(facets.RunFacet):  # type: ignore[misc]
    """What a rewind withdraws: sequence ids as [first, last], from tables."""

    region: str
    epoch: int
    rewindId: int
    to: int
    withdrawn: list[list[int]]
    tables: list[str]

    @staticmethod
    def _get_schema() -> str:
        return f"{FACETS}RewindRunFacet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a group read of a dataset; None for what is not known.

    Attributes:
        version: of the dataset, after the group.
        files: uris of the files that were read, if they are few.
        unmet: by expectation, its condition and the number of rows that do not meet it.
    """

    dataset: Dataset
    version: str = ""
    rows: int | None = None
    size: int | None = None
    file_count: int | None = None
    files: Sequence[str] = ()
    unmet: Mapping[str, tuple[str, int]] | None = None

    def event_part(self) -> Any:
        """Return the input of an event."""
        own: dict[str, Any] = {
            "inputStatistics": facets.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                rowCount=self.rows, size=self.size, fileCount=self.file_count, producer=producer()
            )
        }
        if self.files:
            subset = facets.base_subset_dataset
            condition = subset.LocationSubsetCondition(locations=list(self.files))
            own["subset"] = subset.InputSubsetInputDatasetFacet(inputCondition=condition, producer=producer())
        if self.unmet:
            quality = facets.data_quality_assertions_dataset
            judged = [_assertion(name, *told) for name, told in self.unmet.items()]
            own["dataQualityAssertions"] = quality.DataQualityAssertionsDatasetFacet(
                assertions=judged, producer=producer()
            )
        return ol.InputDataset(*self.dataset, inputFacets=own, facets=_version(self.version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """What a group wrote to a table.

    Attributes:
        size: bytes of the files, None if rows were merged.
        version: of the Delta table, None if it is not known.
        inputs: datasets by the names of the operators that read them.
    """

    output: Output
    rows: int
    size: int | None
    file_count: int | None
    version: int | None
    inputs: Mapping[str, Dataset]

    def event_part(self) -> Any:
        """Return the output of an event."""
        table, columns = self.output.table, self.output.columns
        told = _version("" if self.version is None else str(self.version))
        shown = table.columns or table.column_names
        told["schema"] = facets.schema_dataset.SchemaDatasetFacet(
            fields=[_field(each) for each in json.loads(table.schema_json)["fields"] if each["name"] in shown],
            producer=producer(),
        )
        if columns is not None:
            told["columnLineage"] = facets.column_lineage_dataset.ColumnLineageDatasetFacet(
                fields={name: self._fields_of(origins) for name, origins in columns.items()},
                dataset=None,
                producer=producer(),
            )
        statistics = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=self.rows, size=self.size, fileCount=self.file_count, producer=producer()
        )
        return ol.OutputDataset(*self.output.dataset, outputFacets={"outputStatistics": statistics}, facets=told)

    def _fields_of(self, origins: Sequence[Origin]) -> Any:
        lineage = facets.column_lineage_dataset
        return lineage.Fields(
            inputFields=[
                lineage.InputField(
                    *self.inputs[each.operator],
                    field=each.column,
                    transformations=[lineage.Transformation(type="DIRECT", subtype=each.derivation)],
                )
                for each in origins
                if each.operator in self.inputs
            ]
        )


def _assertion(name: str, condition: str, unmet: int) -> Any:
    return facets.data_quality_assertions_dataset.Assertion(
        assertion="expectation",
        name=name,
        success=not unmet,
        expected="0",
        actual=str(unmet),
        content=condition,
        contentType="sql",
    )


def _version(version: str) -> dict[str, Any]:
    if not version:
        return {}
    told = facets.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version, producer=producer())
    return {"version": told}


def _field(column: Mapping[str, Any]) -> Any:
    kind = column["type"]
    parts = kind.get("fields", ()) if isinstance(kind, dict) else ()
    name = kind["type"] if isinstance(kind, dict) else kind
    known = facets.schema_dataset.SchemaDatasetFacetFields
    return known(name=column["name"], type=name, fields=[_field(each) for each in parts] or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The events of one region.

    Attributes:
        identity: of the region's checkpoint table; no other region, of any home, has it.
        namespace, region: of the job.
    """

    identity: str
    namespace: str
    region: str

    def run_id(self, epoch: int, first: int) -> str:
        """Return the id of the run of a group, by its first id, or of a rewind: the same whoever tells of it, and
        however often. An attempt without a group has 0."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:drainmark:{self.identity}/{self.region}/{epoch}/{first}"))

    def event(
        self,
        kind: str,
        run: tuple[int, int],
        when: dt.datetime,
        *,
        job: str = "",
        told: Mapping[str, Any] | None = None,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
    ) -> Any:
        """Return an event.

        Args:
            kind: START, COMPLETE, FAIL or ABORT.
            run: see `run_id`.
            job: what comes behind the region's name in that of the job.
            told: facets of the run.
            inputs, outputs: the parts of datasets.
        """
        installed = _installed()
        engine = facets.processing_engine_run.ProcessingEngineRunFacet(
            name="Drainmark", version=installed, openlineageAdapterVersion=installed, producer=producer()
        )
        kind_of_job = facets.job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="DRAINMARK", jobType="REGION", producer=producer()
        )
        return ol.RunEvent(
            eventType=ol.RunState(kind),
            eventTime=when.astimezone(dt.UTC).isoformat(),
            run=ol.Run(self.run_id(*run), facets={"processing_engine": engine, **(told or {})}),
            job=ol.Job(self.namespace, f"{self.region}{job}", facets={"jobType": kind_of_job}),
            inputs=list(inputs),
            outputs=list(outputs),
            producer=producer(),
        )

    def group(self, epoch: int, first: int, last: int, **told: Any) -> dict[str, Any]:
        """Return the facet of a group's run; further values are fields of `GroupRunFacet`."""
        return {"drainmark_group": GroupRunFacet(self.region, epoch, first, last, **told, producer=producer())}


def named_input(dataset: Dataset) -> Any:
    """Return an input of which only the name is told."""
    return ol.InputDataset(*dataset)


def named_output(dataset: Dataset) -> Any:
    """Return an output of which only the name is told."""
    return ol.OutputDataset(*dataset)


def failure(message: str) -> dict[str, Any]:
    """Return the facet of a run that says why it failed."""
    told = facets.error_message_run.ErrorMessageRunFacet(message, programmingLanguage="PYTHON", producer=producer())
    return {"errorMessage": told}


def http_sender(url: str, api_key: str, seconds: float) -> Callable[[Any], object]:
    """Return a function that posts an event to a receiver, once, and waits so many seconds for its answer.

    It raises what `event_sender.failure_of` says of the answer.
    """
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

    from drainmark.orchestration.exporters.event_sender import direct_session

    auth = ApiKeyTokenProvider({"apiKey": api_key}) if api_key else TokenProvider({})
    address, session = f"{url.rstrip('/')}/", direct_session()
    transport = HttpTransport(HttpConfig(url=address, timeout=seconds, auth=auth, retry={"total": 0}, session=session))
    return transport.emit  # type: ignore[no-any-return]
