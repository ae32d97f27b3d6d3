"""A remedy is a promise: each command that the product prints is carried out as printed in a test (K.6)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from followed import words_of
from tree import product_files, relative

LOOKS = ("apps", "graph", "operators", "plan", "status", "history", "show", "report", "trace", "metrics",
         "quarantine list", "quarantine show", "doctor")  # fmt: skip
"""Verbs that change nothing, except `doctor --repair`: the tests below parse their commands, and that is all."""
MENTIONS = {
    ("jobs/operators/unsupported.py", "halt"): "a declaration is refused: there is no region yet",
    ("orchestration/cli/inspection.py", "init"): "there is no project yet",
    ("orchestration/dagster_assets/checks.py", "resume"): "describes a check; its result names the region",
    ("resources/delta/commits.py", "reset"): "a reader of one table knows no region",
}
"""Verbs that are named without their words, each with the reason."""
PLACEHOLDERS = {
    ("orchestration/cli/inspection.py", "run", "APP"): "no application is known here yet",
    ("orchestration/cli/metrics_trace.py", "run", "APP"): "no application is known here yet",
    ("orchestration/workplace/declaration.py", "scan", "APP"): "nobody knows where the application is now",
    ("resources/settings.py", "init", "PATH"): "the path of the project is the user's choice",
}
"""Words in capitals that the user has to replace, each with the reason why no name is known."""
CASES: dict[tuple[str, str], str] = {}
"""(Module, command) -> the test that provokes the error and follows its remedy, by `followed.follow`."""
_EXAMPLES = ("jobs/apps", *(f"orchestration/cli/{name}" for name in ("demo", "templates", "terminal/examples")))


def told(path: Path) -> Iterator[str]:
    """Yield the texts of a module, without its docstrings; a value in an f-string becomes `1`."""
    tree = ast.parse(path.read_text())
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        for each in node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                passed.add(each.value)
        if isinstance(node, ast.JoinedStr):
            passed.update(node.values)
            yield "".join(part.value if isinstance(part, ast.Constant) else "1" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed:
            yield node.value


@cache
def commands() -> dict[tuple[str, str], list[tuple[str, list[str]]]]:
    """Return (module, command) -> its forms; a command is a verb with its flags, without values."""
    found: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
    for path in product_files():
        name = relative(path)
        if name.startswith(_EXAMPLES):
            continue
        for text in told(path):
            for verb, words, _ in words_of(text):
                flags = [word for word in words if word.startswith("--")]
                found.setdefault((name, " ".join([verb, *flags])), []).append((verb, words))
    return found
