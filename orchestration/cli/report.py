"""`report`: the page of a region."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.jobs.printable import shell_word
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, RegionName
from drainmark.orchestration.inspection import SHOWN_STATES

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace


def report(
    asked: Asked,
    *,
    region: RegionName,
    last: Annotated[int, typer.Option("--last", min=1, max=2000, help="The newest so many states.")] = SHOWN_STATES,
    file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Here, not in home's pages.", show_default=False),
    ] = None,
    is_opened: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write the page of a region: newest states, seconds by step, failures, rewinds, tables, graph."""
    from drainmark.orchestration.html_report.page import page
    from drainmark.orchestration.html_report.page_file import page_path, report_of
    from drainmark.resources.storage.folder import write_whole

    workplace = asked.workplace
    name = asked.region(region)
    found = report_of(workplace, name, workplace.store(name).checkpoint, _graph(workplace, name), last=last)
    if asked.as_json and file is None:
        output.emit(found)
        return
    target = (file or page_path(workplace.home, name)).absolute()
    if target.is_dir():
        raise UsageError(f"{target} is a folder", remedy=f"--output {shell_word(str(target / 'page.html'))}")
    try:
        write_whole(target, page(found, workplace.settings.dagster_url))
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}", remedy="--output FILE") from error
    if is_opened:
        webbrowser.open(target.as_uri())
    asked.answer(found, lambda _: output.say(str(target)))


def _graph(workplace: Workplace, region: str) -> dict[str, Any] | None:
    """Return the graph of the code that ran last, else of the present code; None if neither is found."""
    from drainmark.jobs.regions.explain import region_json
    from drainmark.orchestration.html_report.page_file import known_graph
    from drainmark.orchestration.workplace.declaration import load_region

    if (graph := known_graph(workplace.home, region)) is not None:
        return graph
    loaded = load_region(workplace, region)
    return region_json(loaded[1]) if loaded is not None else None
