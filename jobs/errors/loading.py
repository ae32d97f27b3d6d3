"""Errors of a run before its claim: faults of its code or its process, not of any input."""

from __future__ import annotations

from drainmark.jobs.errors import DrainmarkError, UsageError


class ApplicationBroken(DrainmarkError):
    """An application cannot be imported: its file, or a package that it needs, fails; `location` is the line."""

    id = "APPLICATION_BROKEN"


class AnalysisTimeout(DrainmarkError):
    """The import, the analysis or the first trial of an application took longer than analysis_timeout_seconds."""

    id = "ANALYSIS_TIMEOUT"


class SchemaUnknown(UsageError):
    """A source declares no schema, and there is no input yet from which its columns could be inferred."""

    id = "SCHEMA_UNKNOWN"


class RunDied(DrainmarkError):
    """A run of Dagster ended before its claim and reported no error: it was killed, or it never began."""

    id = "RUN_DIED"
