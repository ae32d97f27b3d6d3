"""The files to which the rules of this folder apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FACADE = "drainmark"
PACKAGES = ("jobs", "resources", "orchestration")
PURE = ("drainmark.jobs.graph", "drainmark.jobs.regions", "drainmark.jobs.protocol")
_TEXTS = (".py", ".toml", ".yaml", ".yml", ".md", ".sql", ".mako", ".lock", ".json", ".ini", ".cfg")


def product_files() -> list[Path]:
    """Return the Python files of the product, from the top folders and not from the links below `drainmark/`."""
    facade = sorted((ROOT / FACADE).glob("*.py"))
    return [*facade, *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]


def product_modules() -> list[str]:
    """Return the dotted names of the modules of the product."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in product_files()]
    below = (name if name.startswith(f"{FACADE}.") else f"{FACADE}.{name}" for name in names)
    return [name.removesuffix(".__init__") for name in below]


def files_of_tests() -> list[Path]:
    """Return the Python files of the tests, without this folder."""
    return [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parent != Path(__file__).parent]


def text_files() -> Iterator[Path]:
    """Yield the text files of the repository: no caches, no build products, no hidden files except `.ci`."""
    yield from (ROOT / "Makefile", ROOT / ".ci" / "run", *sorted((ROOT / FACADE).glob("*.py")))
    tops = (path for path in sorted(ROOT.glob("*.*")) if path.suffix in _TEXTS)
    yield from (path for path in tops if path.name != "bench-results.json")
    for folder in (*PACKAGES, "deploy", "docs", "sql", "tests"):
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in _TEXTS and path.is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
