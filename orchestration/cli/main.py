"""`drainmark`: the verbs, and how the process ends. What a verb does is in `orchestration/verbs`.

Exit codes: 0 done, 1 failed, 2 usage or a missing `--yes`, 3 halted, 4 owned by another run, 130 interrupted, 141
nobody reads the output any more.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from drainmark.jobs.errors import DrainmarkError, Interrupted, UsageError
from drainmark.jobs.failpoints import ENVIRONMENT, arm_from_environment
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.examples import epilog

VERBS: Mapping[str, str] = {
    "init": "project",
    "dev": "project",
    "apps": "inspection",
    "graph": "inspection",
    "plan": "plan",
    "operators": "inspection",
    "run": "runs",
    "scan": "runs",
    "push": "push",
    "status": "inspection",
    "history": "inspection",
    "show": "inspection",
    "report": "report",
    "reset": "interventions",
    "halt": "interventions",
    "skip": "interventions",
    "resume": "interventions",
    "publish": "interventions",
    "backfill": "interventions",
    "trace": "metrics_trace",
    "metrics": "metrics_trace",
    "doctor": "project",
    "gc": "gc",
    "quarantine": "quarantine",
    "demo": "demo.show",
}
"""Verb -> module of this package that has it, as a function of its name or, of several verbs, as `app`."""
_CLOSED_PIPE = 128 + signal.SIGPIPE
"""How a process ends whose reader has gone, as `head` does when it has its lines."""

_COMPLETES = "_DRAINMARK_COMPLETE"
_COMPLETED_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
_ABOUT_COMPLETION = {"--install-completion", "--show-completion"}
_OTHER_NAMES = {"rewind": "reset"}
_LOOKS = {"apps", "graph", "operators", "status", "history", "show", "report"}
_EVERYWHERE = ("--json", "--yes")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from drainmark.orchestration.workplace.workplace import drainmark_version

        output.say(f"drainmark {drainmark_version()}")
        raise typer.Exit


def command_line(verb: str | None = None) -> typer.Typer:
    """Return the command line, of all verbs or of one: a verb starts sooner without the modules of the others."""
    app = typer.Typer(
        name="drainmark",
        help="Exactly-once, rewindable pipelines on Spark and Delta Lake: one consistent state per file.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    known = {**VERBS, **{other: VERBS[name] for other, name in _OTHER_NAMES.items()}}
    for name in [verb] if verb in known else known:
        module = f"drainmark.orchestration.cli.{known[name]}"
        if importlib.util.find_spec(module) is None:  # the demo is not in every installation
            continue
        found = importlib.import_module(module)
        if isinstance(several := getattr(found, "app", None), typer.Typer):
            app.add_typer(several, name=name)
        else:
            shown = epilog(_OTHER_NAMES.get(name, name))
            app.command(name, hidden=name in _OTHER_NAMES, epilog=shown)(getattr(found, _OTHER_NAMES.get(name, name)))
    return app


def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keep the verb's name on the command line even where it is the only one."""


def main() -> NoReturn:
    """Run the command line and end the process; daemon threads and the JVM's pipes are not waited for."""
    arguments = _verb_first(sys.argv[1:])
    _arm(as_json="--json" in arguments)
    _keep_errors()
    if _COMPLETES in os.environ:  # a shell asks what could follow; this ends the process
        command_line(_asked_verb(os.environ))(prog_name="drainmark")
    if _ABOUT_COMPLETION.intersection(arguments[:1]):  # a shell is told to ask; and so does this
        command_line()(prog_name="drainmark")
    if _LOOKS.intersection(arguments[:1]):  # not a run of an application that is called so
        gc.disable()  # a look ends before there is anything worth a collection, of which imports cause hundreds
    code = invoke(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or _CLOSED_PIPE
        except (OSError, ValueError):
            continue
    os._exit(code)


def _arm(*, as_json: bool) -> None:
    try:
        arm_from_environment()
    except ValueError as error:
        output.complain(UsageError(str(error), remedy=f"correct {ENVIRONMENT}, or unset it"), as_json=as_json)
        sys.stderr.flush()
        os._exit(UsageError.exit_code)


def _keep_errors() -> None:
    """Give this process a standard error of its own: the number 2 is the JVM's log while one starts.

    So what is said meanwhile, and that a run was interrupted then, is still seen.
    """
    if sys.stderr is not None:  # nobody closed it
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error is told on standard error."""
    arguments = _verb_first(arguments)
    as_json = "--json" in arguments
    try:
        verb = arguments[0] if arguments else None
        code = command_line(verb)(args=list(arguments), standalone_mode=False)
    except DrainmarkError as error:
        output.complain(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except BrokenPipeError:
        return _CLOSED_PIPE
    except (Exception, SystemExit) as error:  # of an application's file: with its code nothing would seem to be wrong
        return _unexpected(error, as_json=as_json)
    if code == Interrupted.exit_code:  # typer, too, turns a KeyboardInterrupt into this number
        output.complain(Interrupted("interrupted"), as_json=as_json)
    return code if isinstance(code, int) else 0


def _unexpected(error: BaseException, *, as_json: bool) -> int:
    # typer's own errors of usage; which package defines them depends on its version.
    describe = getattr(error, "format_message", None)
    if describe is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "drainmark"
        is_glob = context is not None and context.info_name == "backfill" and "unexpected extra" in describe()
        quoting = "quote the glob, so that the shell leaves it alone; " if is_glob else ""
        output.complain(UsageError(describe(), remedy=f"{quoting}{path} --help"), as_json=as_json)
        return int(getattr(error, "exit_code", UsageError.exit_code))
    if isinstance(error.__context__, BrokenPipeError):  # as rich has it, which prints the help
        return _CLOSED_PIPE
    if not as_json:
        output.note("".join(traceback.format_exception(error)).rstrip())
    output.complain(DrainmarkError(f"{type(error).__name__}: {error}"), as_json=as_json)
    return DrainmarkError.exit_code


def _verb_first(arguments: Sequence[str]) -> list[str]:
    """Move options that every verb takes behind the verb, so that `drainmark --home H status` is understood."""
    moved: list[str] = []
    rest = list(arguments)
    while rest:
        if rest[0] in _EVERYWHERE or rest[0].startswith("--home="):
            moved.append(rest.pop(0))
        elif rest[0] == "--home" and len(rest) > 1:
            moved += [rest.pop(0), rest.pop(0)]
        else:
            break
    verb = 2 if rest[:1] == ["quarantine"] else 1
    return [*rest[:verb], *moved, *rest[verb:]] if moved else rest


def _asked_verb(environment: MutableMapping[str, str]) -> str | None:
    """Return the verb of the line of which a shell asks how it goes on, None where it has none yet.

    The line is in the environment, as typer reads it: of bash with the place of the word that is being typed, of other
    shells up to it. The verb is put first in it.
    """
    name = next((name for name in _COMPLETED_LINES if name in environment), None)
    if name is None:
        return None
    line = environment[name]
    with suppress(ValueError):  # of a quotation that is still open
        program, *words = shlex.split(line)
        place = int(environment.get("COMP_CWORD", len(words) + line.endswith(" ")))
        before, typed = words[: place - 1], words[place - 1 :]
        moved = _verb_first(before)
        if moved != before:
            environment[name] = shlex.join([program, *moved, *typed]) + ("" if typed else " ")
        return moved[0] if moved and moved[0] in VERBS else None
    return None


if __name__ == "__main__":
    main()
