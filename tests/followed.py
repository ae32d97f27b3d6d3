"""Commands in a text for users, carried out as they are printed: a remedy is a promise."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from drainmark.orchestration.cli.main import VERBS, command_line, invoke

_VERB = re.compile(rf"\bdrainmark ((?:{'|'.join(sorted(VERBS))})\b(?:(?<=quarantine) \w+|(?<=tables) drop)?)")
_WORD = re.compile(r""" ((?:'[^']*'|"[^"]*"|\\.|[^\s'"`,;:()<&]|[,:](?=[\w/]))+)""")

_REPEATED = re.compile("nothing was changed: this is the plan → repeat it with ((?:--[a-z-]+ )+)to carry it out")


def words_of(text: str) -> Iterator[tuple[str, list[str], int]]:
    """Yield the verb of each command in a text, the words behind it, and the place where the command ends.

    A shell ends a command with the line. In a sentence it ends with a mark, or with a word that its verb has no place
    for: `drainmark scan shop looks for new files`.
    """
    for found in _VERB.finditer(text):
        verb, words, end = found[1], [], found.end()
        flags, values, free = _shape(verb)
        while (word := _WORD.match(text, end)) is not None:
            name = word[1].partition("=")[0]
            if name in values and "=" not in word[1]:
                value = _WORD.match(text, word.end())
                words, end = [*words, word[1], *([value[1]] if value else [])], (value or word).end()
                continue
            if not word[1].startswith("--"):
                free -= 1
            elif name not in (*flags, *values):
                msg = f"drainmark {verb} has no option {name}: {text!r}"
                raise AssertionError(msg)
            if free < 0:
                break
            words, end = [*words, word[1]], word.end()
        yield verb, [_said(word) for word in words], end


def _said(word: str) -> str:
    """Return what a word means to a shell: `shlex` does not know the form for control characters, `$'\\033'`."""
    if not word.startswith("$'"):
        return "".join(shlex.split(word))
    return os.fsdecode(re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), word[2:-1].encode()))


def parse(verb: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Return the arguments of a command, by the name that its function has for each, as the command line parses them.

    A wrong value, or a lack of one, is an error of click.
    """
    found: Mapping[str, Any] = _command(verb).make_context(verb, list(words)).params
    return found


def chains(text: str) -> list[list[list[str]]]:
    """Return the commands of a text: those that `&&` joins are one chain."""
    found: list[list[list[str]]] = []
    joined = False
    for verb, words, end in words_of(text):
        command = [*verb.split(), *words]
        found = [*found[:-1], [*found[-1], command]] if joined else [*found, [command]]
        joined = text[end:].startswith(" && ")
    return found


def follow(text: str | None, verb: str, home: Path) -> str:
    """Carry out the commands that a text names, up to the first of a verb, with those that `&&` joins to it.

    A plan that asks to be repeated with some flags is repeated with them. Each command must succeed.

    Returns:
        the output of the last command.
    """
    wanted = next((each for each in chains(text or "") if any(command[0] == verb for command in each)), None)
    assert wanted is not None, f"no drainmark {verb} in {text!r}"
    said = ""
    for command in wanted:
        more = ["--home", str(home), *(["--quick"] if command[0] == "doctor" else [])]  # the trial of Spark takes long
        code, said = _run([*command, *more])
        if code == 2 and (flags := _REPEATED.search(said)) is not None:
            code, said = _run([*command, *flags[1].split(), *more])
        assert code == 0, f"drainmark {shlex.join(command)}: {code}\n{said}"
    return said


def _run(arguments: Sequence[str]) -> tuple[int, str]:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = invoke(arguments)
    return code, said.getvalue()


@lru_cache
def _command(verb: str) -> Any:
    first, *rest = verb.split()
    command: Any = get_command(command_line(first))
    for name in (first, *rest):
        command = command.commands[name]
    return command


def _shape(verb: str) -> tuple[list[str], list[str], int]:
    """Return the flags of a verb, its options with values, and its number of arguments."""
    params = _command(verb).params
    flags = [name for each in params if getattr(each, "is_flag", False) for name in each.opts]
    values = [name for each in params if each.param_type_name == "option" for name in each.opts if name not in flags]
    return flags, values, sum(each.param_type_name == "argument" for each in params)
