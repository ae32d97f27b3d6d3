"""Pure decisions: ids, states, transitions, the fold of history, and the consequences of a failure.

Each place that a late write would change refuses it: `jobs/runtime/commit/region_owner.py` lists these places.
"""
