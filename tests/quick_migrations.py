"""Migrations are read once a process: each opening of an instance of Dagster reads all, only to know the newest.

What is compared and done is the same: the scripts are those that are installed.
"""

from __future__ import annotations

from alembic.config import Config
from alembic.script import ScriptDirectory


def quicken() -> None:
    """Have all openings of one kind of storage in this process share its folder of scripts."""
    read, kept = ScriptDirectory.from_config, dict[tuple[str | None, ...], ScriptDirectory]()

    def once(config: Config) -> ScriptDirectory:
        named = tuple(config.get_main_option(name) for name in ("script_location", "version_locations"))
        if named not in kept:
            kept[named] = read(config)
        return kept[named]

    ScriptDirectory.from_config = staticmethod(once)  # type: ignore[method-assign, assignment]
