"""The texts that Dagster's web pages render as Markdown, and what a browser would do with them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import yaml
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import serialize_value
from markdown_it import MarkdownIt

_PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

_ADDRESS = re.compile(r"https?://|www(?=\.)|[-.\w+]+@[-\w]+(\.[-\w]+)+", re.IGNORECASE)
"""Text that GitHub's Markdown makes a link without any sign."""

_ACTING = frozenset({"link_open", "image", "html_inline", "html_block"})

_SHOWN_AS_TEXT = frozenset({"UserFailureData"})
"""Classes whose description Dagster does not render: the error of a step."""

_TO_A_LAUNCHPAD = re.compile(r"/guess/\w+__(plan|desk)/playground/setup\?config=[\w.~%-]+")
"""A link of the desk: it opens a page and starts nothing, and what it fills in is percent-encoded."""


def acting(markdown: str) -> list[str]:
    """Return what is not mere text in Markdown: images, links but those of the desk, HTML."""
    return [
        f"{token.type}: {token.content or token.attrs}"
        for token in _tokens(markdown)
        if (token.type in _ACTING and not _TO_A_LAUNCHPAD.fullmatch(str(token.attrGet("href"))))
        or (token.type == "text" and _ADDRESS.search(token.content))
    ]


def launched(link: str) -> tuple[str, dict[str, Any]]:
    """Return the job of a link to a launchpad, and the config that is filled in."""
    address = urlsplit(link)
    (text,) = parse_qs(address.query)["config"]
    return address.path.removeprefix("/guess/").removesuffix("/playground/setup"), yaml.safe_load(text)


def shown(markdown: str) -> str:
    """Return the text that a reader sees."""
    return "".join(token.content for token in _tokens(markdown))


def rendered(repository: dg.RepositoryDefinition, dagster_home: Path) -> set[str]:
    """Return the Markdown in the definitions of a code location, and in everything that an instance has stored."""
    defined = json.loads(serialize_value(RepositorySnap.from_def(repository)))
    return {text for value in (defined, *_stored(dagster_home)) for text in _markdown_in(value)}


def _tokens(markdown: str) -> Iterator[Any]:
    for token in _PARSER.parse(markdown):
        if token.type == "inline":
            yield from token.children or ()
        else:
            yield token


def _stored(dagster_home: Path) -> Iterator[Any]:
    """Yield every JSON value in every database of an instance: events, runs, ticks."""
    for path in dagster_home.rglob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            for (table,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
                for row in database.execute(f'select * from "{table}"'):  # noqa: S608 - a table of the same file
                    yield from (json.loads(cell) for cell in row if isinstance(cell, str) and cell.startswith("{"))


def _markdown_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _markdown_in(each)
    if isinstance(value, dict):
        for name, each in value.items():
            is_markdown = name.endswith(("description", "md_str")) and value.get("__class__") not in _SHOWN_AS_TEXT
            if is_markdown and isinstance(each, str):
                yield each
            yield from _markdown_in(each)
