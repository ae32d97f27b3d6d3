"""Sinks, one in each file: Delta tables, databases, files, the quarantine.

A new sink outside Delta has its target here and its publisher in `resources/sinks`; `external_sinks` opens publishers.
"""
