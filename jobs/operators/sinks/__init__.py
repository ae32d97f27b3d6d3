"""Sinks, one a file: Delta tables, databases, files, the quarantine.

A new one outside of Delta is a target here, its publisher in `resources/sinks`, which `external_sinks` opens.
"""
