"""Decide: ids, states, transitions, the fold of history, what follows a failure. Pure.

What comes late is refused where it lands: `jobs/runtime/commit/region_owner.py` lists where.
"""
