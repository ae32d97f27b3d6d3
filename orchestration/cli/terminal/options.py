"""Options that verbs share, and the access of a verb to the project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.terminal import completion, output

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace


def _path_given(text: str) -> Path | None:
    """Return a path, None for an empty text: an unset variable of the shell must not mean the working directory."""
    return Path(text) if text else None


Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="DRAINMARK_HOME; else the environment or drainmark.toml says.",
        metavar="PATH",
        parser=_path_given,
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output and nothing else there.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm a command that asks for it; no effect elsewhere.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="[NAME=]PATH", help="Scan this folder, not the declared one.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the application.", show_default=False),
]
AppName = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        autocompletion=completion.applications,
        help="A name as status shows it, a dotted module, or a Python file; APP/START is one region."
        " May be left out where drainmark.toml names one application.",
        show_default=False,
    ),
]
RegionName = Annotated[
    str,
    typer.Argument(
        metavar="REGION", help="APP/START, or APP where it has one region.", autocompletion=completion.regions
    ),
]
OneRegion = Annotated[
    str | None,
    typer.Option("--region", help="Only this region.", autocompletion=completion.regions, show_default=False),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the history.")]


def workplace(home: Path | None) -> Workplace:
    """Open the project. Most verbs read the settings only here. On a terminal, it announces waits for Spark."""
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.settings import load_settings

    return Workplace(load_settings(home=home), tell=output.waiting)


def parameters(given: Sequence[str] | None) -> dict[str, str]:
    """Return `--set` values by name.

    Raises:
        UsageError: a value has no `=`.
    """
    values: dict[str, str] = {}
    for item in given or ():
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise UsageError(f"--set takes NAME=VALUE, not {item!r}")
        values[name] = value
    return values
