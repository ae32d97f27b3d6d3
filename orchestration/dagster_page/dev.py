"""`dagster dev` with the guarded web server: `python -m drainmark.orchestration.dagster_page.dev OPTIONS`."""

from __future__ import annotations

import sys

from drainmark.orchestration.dagster_jobs import dagster_internals

WEB_SERVER = "drainmark.orchestration.dagster_page.web_server"

if __name__ == "__main__":
    dagster_internals.dev(sys.argv[1:], WEB_SERVER)
