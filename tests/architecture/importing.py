"""A program that imports modules in one process, one after the other, and prints the side effects of each as JSON.

Its arguments are the names of the modules; nothing has been imported in its process before. The acts of a library
during its import do not count; only the acts of the top level of a file of the project do.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = f"{ROOT / 'drainmark'}{os.sep}"
HEAVY = ("pyspark", "dagster", "deltalake", "boto3", "sqlmodel", "sqlalchemy", "pandas", "pyarrow", "py4j")
LIBRARIES_OWN = f"{os.sep}site-packages{os.sep}pydantic{os.sep}"
"""The files of pydantic: it looks for its plugins, in the environment and in files, at the first model."""
WATCHED = ("open", "socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn", "sqlite3.connect")


def culprit() -> str | None:
    """Return the line of the project that is being executed; None if an import or pydantic comes in between."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib") or LIBRARIES_OWN in name:
            return None
        if name.startswith(OURS):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def main(names: list[str]) -> dict[str, Any]:
    """Import the modules; return module -> {"acts": [...], "loaded": heavy packages in memory after it}."""
    acts: list[str] = []

    class Watched(type(os.environ)):  # type: ignore[misc]
        def __getitem__(self, key: str) -> str:
            if where := culprit():
                acts.append(f"environment {key} at {where}")
            return str(super().__getitem__(key))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in WATCHED and (where := culprit()):
            acts.append(f"{event} {arguments[0]!r} at {where}")

    os.environ.__class__ = Watched
    sys.addaudithook(hook)
    found: dict[str, Any] = {}
    for name in names:
        acts.clear()
        importlib.import_module(name)
        found[name] = {"acts": list(acts), "loaded": [package for package in HEAVY if package in sys.modules]}
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    pyspark = sys.modules.get("pyspark")
    started = bool(pyspark and pyspark.SparkContext._active_spark_context)
    return {"modules": found, "threads": threads, "spark_started": started}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    result = json.dumps(main(sys.argv[1:]))
    sys.stdout.write(result + "\n")
    sys.stdout.flush()
    os._exit(0)
