"""A program that builds the documentation as a site with search, into build/site. `make docs` runs it.

Pages link to files beside `docs`, as GitHub shows them. So it copies the pages and the files that they link to with
the same paths as in the repository, and checks every link.
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
_QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # hides the notice of the theme about its successor
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)|<img[^>]+src=\"([^\"]+)\"")


def pages() -> Iterator[Path]:
    """Yield the pages of the site: those beside `docs`, in `docs`, and in `jobs`."""
    for folder in (".", "docs", "docs/how-to", "docs/reference", "jobs"):
        yield from sorted((ROOT / folder).glob("*.md"))


def lay_out() -> None:
    """Copy the pages and the files that they link to."""
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
    """Lay the pages out and build the site; a broken link fails it."""
    lay_out()
    # Without --quiet, which also hides the warnings from --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml")]
    sys.exit(subprocess.run(command, env={**os.environ, **_QUIET}, check=False).returncode)


if __name__ == "__main__":
    main()
