"""Errors of Spark's catalogues: they fail no group, for the rows of a table are there whether it has a name or not."""

from __future__ import annotations

from drainmark.jobs.errors import DrainmarkError


class CatalogueFailed(DrainmarkError):
    """A catalogue cannot be asked, or does not take a name; tried again after a while."""

    id = "CATALOGUE_FAILED"


class NameTaken(CatalogueFailed):
    """Another table, or a view, has the name already; it stays as it is."""

    id = "NAME_TAKEN"
