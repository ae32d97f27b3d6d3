"""Foreign text where it is shown: in Markdown and for a shell it is this very text, and does nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from dagster_pages import acting, shown
from hypothesis import example, given
from hypothesis import strategies as st

from drainmark.jobs.printable import markdown, markdown_block, markdown_code, printable, printable_cell, shell_word

SIGNS = st.text(st.sampled_from("ab1 .\\`|![]()<>&;:/@#*_-+=~\n\t'\"$\x1b\u202ewé"), max_size=40)
ACTING = (
    "![x](/graphql?query=mutation)", "[x](/y)", "<img src=/x>", "<b>", "http://example.org", "see www.a.de.", "a@b.de",
    "a\n```\n```\n![x](/y)", "[x]: /y\n\n[x]", "a | ![x](/y) |", "a\\|![x](/y)", "|-|\n|![x](/y)|", "- ![x](/y)",
    "1. www.a.de", "WWW.a.de", "# ![x](/y)", "> <b>", "![x][y]\n\n[y]: /z",
)  # fmt: skip
SLY = ("&#60;b>", "`![x](/y)", "``` ![x](/y)", "a\n````text\n![x](/y)", "\\![x](/y)", "~~~\n![x](/y)", "    ![x](/y)")
"""These act in another place than alone."""


def in_a_sentence(text: str) -> str:
    return f"Files of {markdown_code(text)}: some."


def in_a_table(text: str) -> str:
    return f"| file | rows |\n|---|--:|\n| {markdown_code(text)} | 3 |"


def test_the_parser_of_these_tests_sees_what_acts() -> None:
    assert [text for text in ACTING if not acting(text)] == []


@pytest.mark.parametrize("form", [markdown, markdown_block, in_a_sentence, in_a_table])
@pytest.mark.parametrize("text", [*ACTING, *SLY])
def test_markdown_in_a_text_does_nothing(text: str, form: Callable[[str], str]) -> None:
    assert acting(form(text)) == []


@given(SIGNS)
@example("a  b")
def test_any_text_can_be_read_and_does_nothing(text: str) -> None:
    for form in (markdown, markdown_block, in_a_sentence, in_a_table):
        assert acting(form(text)) == []
    assert shown(markdown_block(text)).removesuffix("\n") == printable(text)
    assert shown(in_a_sentence(text)) == f"Files of {printable_cell(text)}: some."
    assert printable_cell(text).strip() in shown(in_a_table(text))


def test_prose_stays_prose() -> None:
    for text in ("all 4 tables are at 12", "0 of 6 rows", "back 3.2 hours, to id 7..9", "don't (now): 5 % → done."):
        assert markdown(text) == text


@given(SIGNS)
@example("$(touch x)\n`y`;'\"!\\'")
def test_a_shell_reads_back_the_text(text: str) -> None:
    word = shell_word(text)
    assert printable_cell(word) == word, "errors write control characters out"
    told = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert told.stdout.decode() == text
