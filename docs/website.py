"""Builds the documentation as a site with search, into build/site. `make docs` runs it.

Pages link to files beside `docs`, as GitHub shows them. So the pages of the repository, and the files that they link
to, are laid out as they stand in it, and every link is checked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "site-pages"
_QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # the theme's notice of its successor
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)|<img[^>]+src=\"([^\"]+)\"")


def pages() -> Iterator[Path]:
    """Yield the pages of the site: those beside `docs`, and those in it and in `jobs`."""
    for folder in (".", "docs", "docs/how-to", "docs/reference", "jobs"):
        yield from sorted((ROOT / folder).glob("*.md"))


def lay_out() -> None:
    """Copy the pages and what they link to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in pages():
        _copy(page)
        for found in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / (found[1] or found[2])).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                _copy(target)


def _copy(path: Path) -> None:
    target = PAGES / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def main() -> None:
    """Lay the pages out and build the site; a link that leads nowhere fails it."""
    lay_out()
    # Not --quiet: it takes the warnings from --strict, too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml")]
    sys.exit(subprocess.run(command, env={**os.environ, **_QUIET}, check=False).returncode)


if __name__ == "__main__":
    main()
