"""Examples at the end of the help of each verb; a verb below another verb is listed by both names."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": ("drainmark init words", "drainmark init shop --template orders"),
    "dev": ("drainmark dev --port 3001",),
    "apps": ("drainmark apps", "drainmark apps --examples"),
    "graph": ("drainmark graph app.py", "drainmark graph app --format mermaid", "drainmark graph app.py --analyse"),
    "operators": ("drainmark operators", "drainmark operators --json"),
    "plan": ("drainmark plan app.py", "drainmark plan app.py --drop-state counts --yes"),
    "run": (
        "drainmark run app.py",
        "drainmark run app --input /srv/inbox --for 60",
        "drainmark run app/lines --max-group 100 --set year=2006",
    ),
    "scan": ("drainmark scan app.py",),
    "push": ("drainmark push app clicks.jsonl",),
    "status": ("drainmark status", "drainmark status app --check", "drainmark status --json"),
    "history": ("drainmark history app --last 20", "drainmark history app/lines --all"),
    "show": ("drainmark show word_counts", "drainmark show word_counts --at 12 --json"),
    "changes": ("drainmark changes word_counts --after 12", "drainmark changes word_counts --after 3 --json"),
    "report": ("drainmark report app --open", "drainmark report app/lines --last 50 --output app.html"),
    "reset": ("drainmark reset app --by 1", "drainmark reset app/lines --to 12 --yes"),
    "halt": ("drainmark halt app --reason 'bad prices since noon'",),
    "skip": ("drainmark skip app --file orders-17.csv --reason 'cut off'",),
    "resume": ("drainmark resume app",),
    "publish": ("drainmark publish app",),
    "backfill": ("drainmark backfill app --input '/srv/archive/2025-*.csv' --dry-run",),
    "quarantine list": ("drainmark quarantine list app",),
    "quarantine show": ("drainmark quarantine show app", "drainmark quarantine show app --file orders-17.csv --json"),
    "quarantine redrive": ("drainmark quarantine redrive app --file orders-17.csv",),
    "trace": ("drainmark trace app --file orders-17.csv", "drainmark trace app --table totals --where item=tea"),
    "metrics": ("drainmark metrics > drainmark.prom",),
    "doctor": ("drainmark doctor", "drainmark doctor --quick --json", "drainmark doctor --repair --yes"),
    "gc": ("drainmark gc app --dry-run",),
    "demo": ("drainmark demo", "drainmark demo --input /var/log", "drainmark demo --chaos --kills 3"),
}


def epilog(verb: str) -> str | None:
    """Return the examples for the end of a verb's help, one paragraph for each command; None if it has none."""
    found = EXAMPLES.get(verb)
    return "\n\n".join(("Examples:", *found)) if found else None
