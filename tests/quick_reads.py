"""Installed files that a process reads once: each opening of an instance of Dagster reads migrations, only to know the
newest, and each client of a test reads the models of S3. Both are half of the cost of many tests."""

from __future__ import annotations

from typing import Any

from alembic.config import Config
from alembic.script import ScriptDirectory
from botocore.loaders import JSONFileLoader


def quicken() -> None:
    """Let all readers of the same files in this process share the result."""
    _keep_scripts()
    _keep_models()


def _keep_scripts() -> None:
    read, kept = ScriptDirectory.from_config, dict[tuple[str | None, ...], ScriptDirectory]()

    def once(config: Config) -> ScriptDirectory:
        named = tuple(config.get_main_option(name) for name in ("script_location", "version_locations"))
        if named not in kept:
            kept[named] = read(config)
        return kept[named]

    ScriptDirectory.from_config = staticmethod(once)  # type: ignore[method-assign, assignment]


def _keep_models() -> None:
    read, kept = JSONFileLoader.load_file, dict[str, Any]()

    def once(loader: JSONFileLoader, path: str) -> Any:
        if path not in kept:
            kept[path] = read(loader, path)
        return kept[path]

    JSONFileLoader.load_file = once
