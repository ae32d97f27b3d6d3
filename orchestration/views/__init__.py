"""Views of a region for an operator, as values."""

SHOWN_STATES = 200
"""The default number of states, and of groups, that a report shows."""
