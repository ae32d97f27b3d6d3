"""The operator's desk in Dagster as others name it: its jobs, and the orders that the commands of a remedy are there.

A link opens the launchpad of the job that shows plans, with verb and options filled in. What a link has comes from
remedies, so from names of files as well: it is percent-encoded, and starts nothing before somebody launches it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

PLAN_JOB, DESK_JOB = "plan", "desk"
"""Ends of the names of a region's two jobs: the first shows what a verb would do, the second does it."""

ORDER = "order"
"""Name of their op, so that the config of one is also that of the other."""

_VERBS = frozenset({"reset", "retract", "resume", "skip", "halt", "backfill", "publish"})
_SPELT = {"quarantine redrive": "redrive", "doctor --repair": "repair", "tables drop": "drop"}
"""Verbs of the desk whose command has two words."""

_NUMBERS = ("to", "by")

_LISTS = {("skip", "file"): "files"}
"""Options that a command may have several times, and what the desk calls their list."""

_COMMAND = re.compile(r"(?:^|(?<=[\s(]))drainmark ")
_WORD = re.compile(r"""\s*((?:'[^']*'|"[^"]*"|[^\s'";&()])+)""")

Filled = tuple[str, Mapping[str, Any]]
"""A verb of the desk, and its options that are filled in."""


def dagster_name(region: str) -> str:
    """Return a region's name in the form that Dagster allows for jobs, ops and groups: `app/start` is `app__start`."""
    return re.sub(r"[^A-Za-z0-9_]", "_", region.replace("/", "__"))


def desk_job(region: str, end: str = PLAN_JOB) -> str:
    """Return the name of a job of a region's desk."""
    return f"{dagster_name(region)}__{end}"


def launchpad(region: str, verb: str, options: Mapping[str, Any], *, digest: str | None = None) -> str:
    """Return the address of a launchpad that is filled in, from the root of Dagster's page.

    Dagster finds the code location of the job by itself behind `/guess/`.

    Args:
        digest: of the plan that the desk is to carry out; without one, it is the launchpad for plans.
    """
    import yaml

    carried_out = {} if digest is None else {"digest": digest}
    config = {"ops": {ORDER: {"config": {**carried_out, "verb": {verb: dict(options)}}}}}
    job = desk_job(region, PLAN_JOB if digest is None else DESK_JOB)
    return f"/guess/{job}/playground/setup?config={quote(yaml.safe_dump(config, sort_keys=False), safe='')}"


def links(region: str, texts: Iterable[str]) -> str:
    """Return Markdown with the orders of the desk for the commands in some texts, each with a link; "" for none."""
    orders = [order for text in texts for order in orders_in(region, text)]
    named = {launchpad(region, verb, options): verb for verb, options in orders}
    return ", or ".join(f"[{desk_job(region)}: {verb}]({link})" for link, verb in named.items())


def orders_in(region: str, text: str) -> Iterator[Filled]:
    """Yield what the commands in a text, such as a remedy, are on the desk of a region; other commands are left out."""
    for words in _commands(text):
        spelt = _SPELT.get(" ".join(words[:2]))
        verb = spelt or (words[0] if words and words[0] in _VERBS else None)
        named, options = _options(verb or "", words[2 if spelt else 1 :])
        if verb == "drop" and len(named) == 1:
            yield verb, {"table": named[0], **options}
        elif verb == "repair" or (verb is not None and verb != "drop" and named[:1] == [region]):
            yield verb, {**({"files": named[1:]} if len(named) > 1 else {}), **options}


def _options(verb: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments of a command, and its options by the names that they have on the desk."""
    named: list[str] = []
    found: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            named.append(word)
            continue
        name = word.removeprefix("--").replace("-", "_")
        value: Any = waiting.pop(0) if waiting and not waiting[0].startswith("--") else True
        if name in _NUMBERS and str(value).isdigit():
            value = int(value)
        value = "" if value == "…" else value
        if (several := _LISTS.get((verb, name))) is not None:
            found[several] = [*found.get(several, ()), value]
        elif name != "yes":
            found[name] = value
    return named, found


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a text; a name that has a command in it is a word of its own command."""
    at = 0
    while (begin := _COMMAND.search(text, at)) is not None:
        words: list[str] = []
        at = begin.end()
        while (word := _WORD.match(text, at)) is not None:
            words, at = [*words, word[1].removesuffix(",")], word.end()
            if word[1].endswith(","):  # of the sentence: a comma of a name is quoted, or within a word
                break
        if not any(word.startswith("$'") for word in words):  # of a name with control characters
            yield [shlex.split(word)[0] if word else "" for word in words]
