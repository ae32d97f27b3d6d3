"""Run: a region from its claim to its release, group after group."""
