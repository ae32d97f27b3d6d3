"""Scans of folders and of prefixes in buckets for new files."""
