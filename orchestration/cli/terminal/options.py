"""Options that verbs share, examples in their help, and the access of a verb to the project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
CONDITIONS = "COLUMN = VALUE, COLUMN IN (VALUE, …), joined by AND; if given several times, all must hold."
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
AppOrRegion = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]", help="Only this application or region.", autocompletion=completion.applications_and_regions
    ),
]
RegionOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="[REGION]",
        help="APP/START, or APP where it has one; else the whole home.",
        autocompletion=completion.regions,
    ),
]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="Name of a sink's table.", autocompletion=completion.tables)
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many rows; 50 on a terminal.")]
OneRegion = Annotated[
    str | None,
    typer.Option("--region", help="Only this region.", autocompletion=completion.regions, show_default=False),
]


Rows = Sequence[Mapping[str, Any]]
_SHOWN_ROWS = 50


@dataclass(frozen=True)
class Asked:
    """What can be given to every verb.

    Attributes:
        home: as `--home` has it; None without it.
        as_json: the answer is JSON on standard output, and nothing else there.
        yes: what the verb would change is confirmed.
    """

    home: Path | None
    as_json: bool
    yes: bool

    @cached_property
    def workplace(self) -> Workplace:
        """Open the project. Most verbs read the settings only here. On a terminal, it announces waits for Spark."""
        from drainmark.orchestration.workplace.workplace import Workplace
        from drainmark.resources.settings import load_settings

        return Workplace(load_settings(home=self.home), tell=output.waiting)

    def answer_rows(self, columns: Sequence[str], count: int, limit: int | None, first: Callable[[int], Rows]) -> None:
        """Print the first rows of a table, by default all as JSON and 50 for people.

        Args:
            count: of all rows.
            first: returns so many rows, by column.
        """
        rows = first(min(count, limit or (count if self.as_json else _SHOWN_ROWS)))
        if self.as_json:
            output.emit(rows)
            return
        output.table(columns, [[row[column] for column in columns] for row in rows])
        if len(rows) < count:
            output.say(f"{len(rows)} of {count} rows: --limit {count} shows all")

    def answer(self, found: Any, show: Callable[[Any], None]) -> None:
        """Print a result: as JSON, or as `show` prints it for people."""
        if self.as_json:
            output.emit(found)
        else:
            show(found)

    def region(self, given: str) -> str:
        """Return the full name of a region that is given as the user names it."""
        from drainmark.orchestration.workplace.declaration import find_region

        return find_region(self.workplace, given)


_COMMON = tuple(
    Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, default, kind in (("home", None, Home), ("as_json", False, AsJson), ("yes", False, Yes))
)


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function of a verb as typer wants it: with the options of every verb in place of `asked`.

    A function without `asked` has options of its own only.
    """
    own = dict(signature(function, eval_str=True).parameters)
    if own.pop("asked", None) is None:
        return function

    @wraps(function)
    def called(**given: Any) -> None:
        common = {each.name: given.pop(each.name) for each in _COMMON}
        function(Asked(**common), **given)

    called.__signature__ = Signature([*own.values(), *_COMMON])  # type: ignore[attr-defined]
    return called


def nothing_changed(flags: str = "", *, then: Sequence[str] = ()) -> UsageError:
    """Return the error behind a plan that is only shown.

    Args:
        flags: those that are needed besides `--yes`, each behind a space.
        then: what is to be done after it.
    """
    remedy = "; then: ".join((f"repeat it with --yes{flags} to carry it out", *then))
    return UsageError("nothing was changed: this is the plan", remedy=remedy)


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


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": ("drainmark init words", "drainmark init shop --template orders"),
    "dev": ("drainmark dev --port 3001",),
    "apps": ("drainmark apps", "drainmark apps --examples", "drainmark apps --left"),
    "graph": ("drainmark graph app.py", "drainmark graph app --format mermaid", "drainmark graph app.py --analyse"),
    "operators": ("drainmark operators", "drainmark operators --json"),
    "plan": ("drainmark plan app.py", "drainmark plan app.py --drop-state counts --yes"),
    "run": (
        "drainmark run app.py",
        "drainmark run app --input /srv/inbox --for 60",
        "drainmark run app/lines --max-group 100 --set year=2006",
    ),
    "scan": ("drainmark scan app.py",),
    "push": ("drainmark push app clicks.jsonl",),
    "status": ("drainmark status", "drainmark status app --check", "drainmark status --json"),
    "history": ("drainmark history app --last 20", "drainmark history app/lines --all"),
    "show": ("drainmark show word_counts", "drainmark show word_counts --at 12 --json"),
    "changes": ("drainmark changes word_counts --after 12", "drainmark changes word_counts --after 3 --json"),
    "tables": ("drainmark tables", "drainmark tables --left --json"),
    "tables drop": (
        "drainmark tables drop old_totals",
        "drainmark tables drop old_totals --yes",
        "drainmark tables drop --region app/lines --yes",
    ),
    "report": ("drainmark report app --open", "drainmark report app/lines --last 50 --output app.html"),
    "reset": ("drainmark reset app --by 1", "drainmark reset app/lines --to 12 --yes"),
    "retract": ("drainmark retract app orders-17.csv", "drainmark retract app /srv/inbox/orders-1[78].csv --yes"),
    "halt": ("drainmark halt app --reason 'bad prices since noon'",),
    "skip": ("drainmark skip app --file orders-17.csv --file orders-19.csv --reason 'cut off'",),
    "resume": ("drainmark resume app",),
    "publish": ("drainmark publish app",),
    "backfill": ("drainmark backfill app --input '/srv/archive/2025-*.csv' --dry-run",),
    "quarantine list": ("drainmark quarantine list app",),
    "quarantine show": ("drainmark quarantine show app", "drainmark quarantine show app --file orders-17.csv --json"),
    "quarantine redrive": ("drainmark quarantine redrive app --file orders-17.csv",),
    "trace": ("drainmark trace app --file orders-17.csv", "drainmark trace app --table totals --where item=tea"),
    "metrics": ("drainmark metrics > drainmark.prom",),
    "doctor": ("drainmark doctor", "drainmark doctor --quick --json", "drainmark doctor --repair --yes"),
    "sparks": ("drainmark sparks", "drainmark sparks --stop"),
    "gc": ("drainmark gc app --dry-run",),
    "erase": (
        "drainmark erase --where 'customer = 17'",
        "drainmark erase app --where \"email IN ('a@b.c', 'a@b.org')\" --certificate erased.json --yes",
    ),
    "demo": ("drainmark demo", "drainmark demo --input /var/log", "drainmark demo --chaos --kills 3"),
}


def epilog(verb: str) -> str | None:
    """Return the examples for the end of a verb's help, one paragraph for each command; None if it has none."""
    found = EXAMPLES.get(verb)
    return "\n\n".join(("Examples:", *found)) if found else None
