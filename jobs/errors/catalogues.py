"""Errors of Spark's catalogues: they fail no group, since a table has its rows with and without a name."""

from __future__ import annotations

from drainmark.jobs.errors import DrainmarkError


class CatalogueFailed(DrainmarkError):
    """A catalogue cannot be reached, or refuses a name; Drainmark tries again later."""

    id = "CATALOGUE_FAILED"


class NameTaken(CatalogueFailed):
    """Another table, or a view, has the name already; it stays unchanged."""

    id = "NAME_TAKEN"
