"""`drainmark`: the verbs, and the end of the process. The work of most verbs is in `orchestration/verbs`.

Exit codes: 0 done, 1 failed, 2 usage or a missing `--yes`, 3 halted, 4 owned by another run, 130 interrupted, 141
the reader of the output has closed it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import re
import shlex
import sys
import traceback
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from drainmark.jobs.errors import DrainmarkError, Interrupted, UsageError
from drainmark.jobs.errors.environment import RESTORE, FileDamaged
from drainmark.jobs.failpoints import ENVIRONMENT, arm_from_environment
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import epilog, verb
from drainmark.resources.spark.session_settings import have_utc

VERBS: Mapping[str, str] = {
    "init": "project",
    "dev": "project",
    "apps": "inspection",
    "graph": "inspection",
    "plan": "plan",
    "operators": "inspection",
    "run": "runs",
    "scan": "runs",
    "push": "runs",
    "status": "inspection",
    "history": "inspection",
    "show": "inspection",
    "changes": "inspection",
    "tables": "tables",
    "report": "report",
    "reset": "interventions",
    "retract": "interventions",
    "halt": "interventions",
    "skip": "interventions",
    "resume": "interventions",
    "publish": "interventions",
    "backfill": "interventions",
    "trace": "metrics_trace",
    "metrics": "metrics_trace",
    "doctor": "project",
    "sparks": "project",
    "gc": "removals",
    "erase": "removals",
    "quarantine": "quarantine",
    "demo": "demo.show",
}
"""Verb -> module of this package that has it, as a function of its name; for a group of verbs, as `app`."""

_COMPLETES = "_DRAINMARK_COMPLETE"
_COMPLETED_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
_ABOUT_COMPLETION = {"--install-completion", "--show-completion"}
_OTHER_NAMES = {"rewind": "reset"}
_LOOKS = {"apps", "graph", "operators", "status", "history", "show", "changes", "report"}
_EVERYWHERE = ("--json", "--yes")
_TABLES_FILE = re.compile(r"/(lake|state|checkpoints)/.*\.parquet\b|/_delta_log/|/_staged/")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from drainmark.orchestration.workplace.workplace import drainmark_version

        output.say(f"drainmark {drainmark_version()}")
        raise typer.Exit


def command_line(only: str | None = None) -> typer.Typer:
    """Return the command line, with all verbs or only one: a verb starts sooner without the modules of the others."""
    app = typer.Typer(
        name="drainmark",
        help="Exactly-once, rewindable pipelines on Spark and Delta Lake: one consistent state per file.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    known = {**VERBS, **{other: VERBS[name] for other, name in _OTHER_NAMES.items()}}
    for name in [only] if only in known else known:
        module = f"drainmark.orchestration.cli.{known[name]}"
        if importlib.util.find_spec(module) is None:  # not every installation has the demo
            continue
        found = importlib.import_module(module)
        if isinstance(several := getattr(found, "app", None), typer.Typer):
            app.add_typer(several, name=name)
        else:
            shown = epilog(_OTHER_NAMES.get(name, name))
            function = verb(getattr(found, _OTHER_NAMES.get(name, name)))
            app.command(name, hidden=name in _OTHER_NAMES, epilog=shown)(function)
    return app


def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Have a callback, so that typer requires the verb's name even if there is only one verb."""


def main() -> NoReturn:
    """Run the command line and end the process, without waiting for daemon threads and the JVM's pipes."""
    _have_streams()
    have_utc()
    arguments = _verb_first(sys.argv[1:])
    _arm(as_json="--json" in arguments)
    _keep_errors()
    output.printable_logs()
    if _COMPLETES in os.environ:  # a shell asks for completions; this call ends the process
        command_line(_asked_verb(os.environ))(prog_name="drainmark")
    if _ABOUT_COMPLETION.intersection(arguments[:1]):  # this call ends the process, too
        command_line()(prog_name="drainmark")
    if _LOOKS.intersection(arguments[:1]):  # the first word is the verb, not an application of that name
        gc.disable()  # imports cause hundreds of collections, and these verbs end before one pays off
        closed = list[bool]()
    else:
        closed = output.hear_out()
    code = invoke(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            closed.append(True)
        except (OSError, ValueError):
            continue
    os._exit(code or (output.CLOSED_PIPE if closed else 0))


def _have_streams() -> None:
    """Put the null device where the caller closed a standard stream: else the next file of ours would be in its place.

    What is printed would then be written into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _arm(*, as_json: bool) -> None:
    try:
        arm_from_environment()
    except ValueError as error:
        output.complain(UsageError(str(error), remedy=f"correct {ENVIRONMENT}, or unset it"), as_json=as_json)
        sys.stderr.flush()
        os._exit(UsageError.exit_code)


def _keep_errors() -> None:
    """Give this process a standard error of its own, because descriptor 2 is the log of the JVM while one starts.

    So messages of that time are still visible, e.g. that the run was interrupted.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error is reported on standard error."""
    arguments = _verb_first(arguments)
    as_json = "--json" in arguments
    try:
        code = command_line(arguments[0] if arguments else None)(args=list(arguments), standalone_mode=False)
    except DrainmarkError as error:
        output.complain(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except BrokenPipeError:
        return output.CLOSED_PIPE
    except (Exception, SystemExit) as error:  # SystemExit of a user's file could look like success
        return _unexpected(error, as_json=as_json)
    if code == Interrupted.exit_code:  # typer also turns a KeyboardInterrupt into this code
        output.complain(Interrupted("interrupted"), as_json=as_json)
    return code if isinstance(code, int) else 0


def _unexpected(error: BaseException, *, as_json: bool) -> int:
    # typer's own usage errors; the package that defines them depends on its version.
    describe = getattr(error, "format_message", None)
    if describe is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "drainmark"
        is_glob = context is not None and context.info_name == "backfill" and "unexpected extra" in describe()
        quoting = "quote the glob, so that the shell leaves it alone; " if is_glob else ""
        output.complain(UsageError(describe(), remedy=f"{quoting}{path} --help"), as_json=as_json)
        return int(getattr(error, "exit_code", UsageError.exit_code))
    if isinstance(error.__context__, BrokenPipeError):  # rich, which prints the help, raises another error for it
        return output.CLOSED_PIPE
    if isinstance(error, FileNotFoundError) and _TABLES_FILE.search(str(error)):
        gone = FileDamaged(f"a file of Drainmark's own is gone: {error}", remedy=RESTORE)
        output.complain(gone, as_json=as_json)
        return DrainmarkError.exit_code
    if not as_json:
        output.note("".join(traceback.format_exception(error)).rstrip())
    output.complain(DrainmarkError(f"{type(error).__name__}: {error}"), as_json=as_json)
    return DrainmarkError.exit_code


def _verb_first(arguments: Sequence[str]) -> list[str]:
    """Move options of every verb behind the verb, so that `drainmark --home H status` works."""
    moved: list[str] = []
    rest = list(arguments)
    while rest:
        if rest[0] in _EVERYWHERE or rest[0].startswith("--home="):
            moved.append(rest.pop(0))
        elif rest[0] == "--home" and len(rest) > 1:
            moved += [rest.pop(0), rest.pop(0)]
        else:
            break
    words = 2 if rest[:1] == ["quarantine"] or rest[:2] == ["tables", "drop"] else 1
    return [*rest[:words], *moved, *rest[words:]] if moved else rest


def _asked_verb(environment: MutableMapping[str, str]) -> str | None:
    """Return the verb of the line that a shell wants to complete, None if it has none yet; put the verb first in it.

    The line is in the environment, as typer reads it: bash gives the whole line and the index of the word to complete,
    other shells give the line up to this word.
    """
    name = next((name for name in _COMPLETED_LINES if name in environment), None)
    if name is None:
        return None
    line = environment[name]
    with suppress(ValueError):  # a quotation is still open
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
