"""The registry: triggers, progress and leases, in SQLite or PostgreSQL."""
