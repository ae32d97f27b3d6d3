"""Sinks outside of Delta: tables of databases, and folders and buckets with one file for each id."""
