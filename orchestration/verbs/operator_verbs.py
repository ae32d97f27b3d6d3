"""An operator's verbs, each declared once: its options with their help, and the order that they ask for.

The command line makes a command of a verb, and the desk in Dagster a form of its launchpad: both have the same options,
and say and do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Annotated, Literal

import typer

from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.inputs.backfill import Wanted
from drainmark.orchestration.verbs.orders import Order
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, moment
from drainmark.orchestration.workplace.workplace import Workplace


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb.

    Attributes:
        about: what it does; the first sentence says it in short.
        order: returns the order for a workplace and a region; its further arguments are the options, annotated as typer
            reads them.
        only_plans: when the command line shows the plan alone; the desk always shows it first.
    """

    name: str
    about: str
    order: Callable[..., Order]
    only_plans: Literal["never", "without --yes", "with --dry-run"] = "never"

    @property
    def options(self) -> Sequence[Parameter]:
        _, _, *options = signature(self.order, eval_str=True).parameters.values()
        return [each.replace(kind=Parameter.KEYWORD_ONLY) for each in options]


def _reset(
    workplace: Workplace,
    region: str,
    *,
    to: Annotated[int | None, typer.Option("--to", min=0, help="Go back to this sequence id.")] = None,
    to_file: Annotated[
        str | None, typer.Option("--to-file", help="Go back to right after this file: its path or the end of it.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", help="Go back to the last state committed by this time: ISO-8601, UTC if it says no offset."
        ),
    ] = None,
    by: Annotated[int | None, typer.Option("--by", min=0, help="Go back by so many states.")] = None,
    to_code: Annotated[
        str | None, typer.Option("--to-code", help="Go back to the last state that this code made; `history` names it.")
    ] = None,
    to_initial: Annotated[bool, typer.Option("--to-initial", help="Go back to the state before any file.")] = False,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Even if files are gone or changed.")] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also take back the regions that read rows which leave.")
    ] = False,
) -> Order:
    until = moment(to_time, "--to-time", to_its_end=True)
    target = RewindTarget(to=to, to_file=to_file, to_time=until, by=by, to_code=to_code, to_initial=to_initial)
    return orders.reset(workplace, region, target, accept_loss=accept_loss, cascade=cascade)


def _backfill(
    workplace: Workplace,
    region: str,
    *,
    input: Annotated[  # noqa: A002 - as the option is called
        str,
        typer.Option(
            "--input",
            metavar="GLOB",
            help="Files to queue: a glob, a folder (all below it) or s3://BUCKET/…; on Dagster's page, paths count from"
            " the project.",
        ),
    ],
    since: Annotated[
        str | None, typer.Option("--since", help="Only files modified at or after this time: ISO-8601.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only files modified before this time: ISO-8601.")
    ] = None,
    output: Annotated[str | None, typer.Option("--output", help="Output of the source, if it has several.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also committed files: their new rows replace the present ones.")
    ] = False,
) -> Order:
    begin, end = moment(since, "--since"), moment(until, "--until")
    wanted = Wanted(pattern=input, since=begin, until=end, output=output, again=again)
    return orders.backfill(workplace, region, wanted)


RESET = Verb("reset", "Return to the last committed state, or rewind to an earlier one.", _reset, "without --yes")
RETRACT = Verb(
    "retract",
    "Take committed files back out of the tables, without reading later files again.",
    orders.retract,
    "without --yes",
)
HALT = Verb("halt", "Halt a region until it is resumed. A run that works on it ends after its group.", orders.halt)
RESUME = Verb("resume", "Let a halted region go on; its attempts are counted from zero again.", orders.resume)
SKIP = Verb("skip", "Skip pending files that cannot be fixed: an empty state records each.", orders.skip)
PUBLISH = Verb("publish", "Bring large tables that lag up to the committed state now.", orders.publish)
BACKFILL = Verb(
    "backfill",
    "Queue files that the scan would not take. Committed files stay as they are; --again replaces them.",
    _backfill,
    "with --dry-run",
)
REDRIVE = Verb(
    "redrive",
    "Queue a fixed file that was quarantined whole. The good rows of other files are in the tables already.",
    orders.redrive,
)
