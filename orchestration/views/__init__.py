"""Views of a region for an operator, as values."""

SHOWN_STATES = 200
"""How many states, and how many groups, a report shows where nobody says it."""
