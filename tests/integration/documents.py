"""Runs a page of documentation: writes its files, types its commands, and compares their output with the page.

A page may have these parts, in order:

- a paragraph that ends in a line such as "`word_count.py`:" and a block: the block is written to that file;
- a `console` block: commands after `$`, their output below them, `...` for lines that are left out;
- an `sh` block: commands without their output;
- a `python` block without a file's name: a script;
- `<!-- not run: why -->` before a block that cannot run here; the test counts these.

Every other block (`toml`, `ini`, `text`, …) without a file's name is only read.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_LANGUAGES = ("python", "console", "sh")
PRINTED_HOME = "/srv"
"""The path that the pages show for the project's parent folder."""

InProcess = Callable[[list[str]], tuple[int, str, str]]
"""Runs `drainmark` with these arguments; returns exit code, standard output and standard error."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"`([\w./-]+)`[^`\n]*:$")
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a page.

    Attributes:
        line: the line in which it starts, from 1.
        file: the file to which its text is written; empty if there is none.
        not_run: the reason why it cannot run in a test; empty if it can.
    """

    language: str
    text: str
    line: int
    file: str = ""
    not_run: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the output that a page shows below it; None if the page shows none."""

    command: str
    output: str | None


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for found in _BLOCK.finditer(page):
        before = page[: found.start()].rstrip().rpartition("\n")[2]
        name, not_run = _FILE_NAME.search(before), _NOT_RUN.search(before)
        yield Block(
            language=found[1],
            text=found[2],
            line=page.count("\n", 0, found.start()) + 1,
            file=name[1] if name and found[1] != "console" else "",
            not_run=not_run[1] if not_run else "",
        )


def steps(block: Block) -> Iterator[Step]:
    """Yield the commands of a `console` or `sh` block; a backslash at the end of a line continues it."""
    text = block.text.replace("\\\n", " ")
    if block.language == "sh":
        yield from (Step(line.partition(" #")[0].rstrip(), None) for line in text.splitlines() if line.strip())
        return
    assert text.startswith("$ "), f"a console block begins with a command, line {block.line}"
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Step(command, output)


@dataclass(slots=True)
class Terminal:
    """A user's terminal in a project folder.

    Attributes:
        folder: the folder in which the page begins.
        in_process: runs `drainmark` here, on the session of the test run; None: in its own process, as users do.
        environment: further variables.
    """

    folder: Path
    in_process: InProcess | None = None
    environment: dict[str, str] = field(default_factory=dict)
    here: Path = field(init=False)
    _code: int = 0

    def __post_init__(self) -> None:
        self.here = self.folder

    def type(self, step: Step, where: str) -> None:
        """Type a command; fail the test if its exit code or its output differs from the page."""
        if step.command == "echo $?":
            assert step.output is not None
            assert int(step.output) == self._code, f"{where}: $ echo $?"
            self._code = 0
            return
        assert self._code == 0, f"{where}: the command before ended with {self._code}, which the page does not say"
        self._code, out, error = self._run(step.command)
        complete = out + error if self._code else out
        if step.output is None:
            assert self._code == 0, f"{where}: $ {step.command}\n{complete}"
            return
        shown, found = normal(step.output), normal(self._as_printed(complete))
        assert matches(shown, found), f"{where}: $ {step.command}\n--- the page shows\n{shown}\n--- it prints\n{found}"

    def ended(self, where: str) -> None:
        """Fail the test if the last command failed and the page does not say that it fails."""
        assert self._code == 0, f"{where}: the last command ended with {self._code}"

    def _run(self, command: str) -> tuple[int, str, str]:
        if (target := re.fullmatch(r"cd (\S+)", command)) is not None:
            self.here = (self.here / target[1]).resolve()
            return 0, "", ""
        words = shlex.split(command)
        is_plain = words[0] == "drainmark" and not re.search(r"[|<>;&]|\$\(", command)
        if self.in_process is not None and is_plain:
            os.chdir(self.here)
            return self.in_process(words[1:])
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.here, env=self._environment(), capture_output=True, encoding="utf-8",
            check=False,
        )  # fmt: skip
        # bash itself reports a killed child as 128 + the signal when it did not exec it.
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return code, done.stdout, done.stderr

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRAINMARK_", "DAGSTER_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        return {**kept, **self.environment, "PATH": path, "PYTHONIOENCODING": "utf-8"}

    def _as_printed(self, text: str) -> str:
        return text.replace(str(self.folder.resolve()), PRINTED_HOME).replace(str(self.folder), PRINTED_HOME)


def run_page(page: str, terminal: Terminal, name: str) -> None:
    """Run the blocks of a page in order."""
    for block in blocks(page):
        where = f"{name}:{block.line}"
        if block.not_run:
            continue
        if block.file:
            target = terminal.here / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
        elif block.language == "python":
            terminal.type(Step(f"python -c {shlex.quote(block.text)}", None), where)
        elif block.language in RUN_LANGUAGES:
            for step in steps(block):
                terminal.type(step, where)
    terminal.ended(name)


def normal(output: str) -> list[str]:
    """Return an output's lines without what changes from run to run: seconds, times, pids, codes, column widths."""
    for pattern, text in (
        (r"\b\d+\.\d+ s\b", "N s"),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "TIME"),
        (r"\bpid \d+( on \S+)?", "pid N"),
        (r"\bcode [0-9a-f]{8}\b", "code N"),
        (r"\b\d+\.\d+\b", "N"),
        (r"─+", "─"),
        (r"[ \t]+", " "),
    ):
        output = re.sub(pattern, text, output)
    return [line.strip() for line in output.splitlines() if line.strip()]


def matches(shown: list[str], found: list[str]) -> bool:
    """Say whether the lines found match a page; `...` stands for any lines, or inside a line for any text."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else f"{'.*'.join(map(re.escape, line.split('...')))}\\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in found)) is not None
