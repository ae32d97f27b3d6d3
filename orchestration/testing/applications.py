"""The application under test: the ways to name it, and its opening on the folders of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.application import (
    Application,
    application,
    application_of,
    build_application,
    load_application,
)
from drainmark.jobs.operators.sinks.database_sinks import DatabaseSink
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import Source
from drainmark.orchestration.workplace.workplace import Opened, open_application

App = str | Path | ModuleType | Application | Callable[[], Any]
"""A name in `jobs/apps`, a dotted module, the path of a Python file, an imported module, an application built by hand,
or a function without arguments that declares operators when it is called (the application gets the function's name)."""


def application_from(app: App) -> Application:
    """Return the application that a test names.

    Raises:
        UnknownName, UsageError: there is no such application, or it declares nothing.
    """
    if isinstance(app, Application):
        return app
    if isinstance(app, ModuleType):
        return application_of(app)
    if isinstance(app, str | Path):
        return load_application(str(app))
    with application(app.__name__) as declared:
        app()
    code = getattr(app, "__code__", None)
    return build_application(declared, origin=code.co_filename if code else "")


def reference_of(app: App) -> str:
    """Return the text by which another process finds the application.

    Raises:
        UsageError: the application exists only in this process.
    """
    if isinstance(app, ModuleType) and app.__file__:
        return app.__file__
    if isinstance(app, str | Path):
        return str(Path(app).resolve()) if str(app).endswith(".py") else str(app)
    msg = "the application lives in this process only, and another process is to be killed"
    raise UsageError(msg, remedy="put the application into a file and name its path")


def sources_of(app: Application) -> dict[str, DirectorySource]:
    """Return the sources that scan folders, by name; none if all sources are of other kinds.

    Raises:
        UsageError: the application has no source of any kind.
    """
    found = {operator.name: operator for operator in app.operators if isinstance(operator, DirectorySource)}
    if not any(isinstance(operator, Source) for operator in app.operators):
        raise UsageError(f"application {app.name!r} has no source to give files to", remedy="declare a @dm.source")
    return found


def outside_of(app: Application) -> dict[str, Any]:
    """Return settings that put the output of sinks outside Delta into the home.

    So real databases and folders stay unchanged, and copies of a home share none.
    """
    names = {operator.database for operator in app.operators if isinstance(operator, DatabaseSink)}
    return {"databases": {name: f"sqlite:///{{home}}/{name}.db" for name in names}, "files_root": "{home}/files"}


def open_on(
    app: Application,
    folders: Mapping[str, Path],
    params: Mapping[str, Any] | None = None,
    topics: Mapping[str, Path] | None = None,
) -> Opened:
    """Open an application on inputs of the test: `folders` to scan and `topics` as files, by name of the source."""
    from drainmark.orchestration.testing.topics import with_topics

    inputs = [f"{name}={folder}" for name, folder in folders.items()]
    return open_application(with_topics(app, topics) if topics else app, params=params, inputs=inputs)
