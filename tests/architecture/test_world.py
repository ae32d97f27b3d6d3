"""The protocol meets clocks, chance and threads in `drainmark.jobs.world` alone: the simulator decides about each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from architecture.tree import ROOT, product_files, relative

PACKAGES = (
    "jobs/protocol", "jobs/runtime", "jobs/scan", "jobs/state", "resources/delta", "resources/checkpoints",
    "resources/registry", "resources/sinks", "resources/storage", "resources/inputs", "orchestration/verbs",
    "orchestration/doctor", "orchestration/workplace", "orchestration/runs", "orchestration/discovery",
)  # fmt: skip

ELSEWHERE = (
    "jobs/runtime/autonomous/", "jobs/runtime/group/", "jobs/runtime/hosting/", "jobs/runtime/stages/",
    "jobs/state/handlers/permits.py",  # threads of authors
    "jobs/scan/bucket_listing.py", "resources/checkpoints/data_stores.py", "resources/inputs/inputs.py",
    "resources/storage/bucket_folder.py", "resources/storage/store_probe.py",  # buckets
    "resources/inputs/task_answers.py",  # Spark's workers ask it
)  # fmt: skip
"""Where threads are started that the simulator never meets; their clocks are the world's all the same."""

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"},
    "datetime": {"now", "utcnow", "today"},
    "uuid": {"uuid1", "uuid4"},
    "random": None,
    "secrets": None,
}
THREADS = {"threading": {"Thread", "Event", "Timer", "Condition"}, "concurrent.futures": None}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_of_the_protocol_has_no_clock_chance_or_thread_of_its_own(package: str) -> None:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        banned = CLOCKS if relative(path).startswith(ELSEWHERE) else {**CLOCKS, **THREADS}
        if own := own_of(path, banned):
            found[relative(path)] = own
    assert found == {}, "ask `drainmark.jobs.world` for it"


@pytest.mark.parametrize("place", ELSEWHERE)
def test_an_exception_is_needed(place: str) -> None:
    files = [path for path in product_files() if relative(path).startswith(place)]
    assert any(own_of(path, THREADS) for path in files)


def own_of(path: Path, banned: dict[str, set[str] | None]) -> list[str]:
    """Return what a module takes from others than the world, with its lines; names under a check of types are none."""
    tree = ast.parse(path.read_text())
    names: dict[str, str] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(each.asname or each.name): each.name for each in node.names if each.name in banned}
        elif isinstance(node, ast.ImportFrom) and node.module in banned:
            taken = banned[node.module]
            found += [f"{node.lineno}: {each.name}" for each in node.names if taken is None or each.name in taken]
            names |= {(each.asname or each.name): node.module for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = names.get(ast.unparse(node.value).partition(".")[0])
            taken = banned[module] if module else set()
            if taken is None or node.attr in taken:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found
