"""Decide: ids, states, transitions, the fold of history, what follows a failure. Pure."""
