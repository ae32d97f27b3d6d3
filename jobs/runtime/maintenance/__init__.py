"""Maintenance of a region: compaction, trimming, garbage, finished input."""
