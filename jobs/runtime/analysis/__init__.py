"""The analysis before a region is claimed: plans, column types, vectorisation."""
