"""Mergeable aggregations: sums and counts, moments, percentiles, lists; the same however triggers are grouped."""
