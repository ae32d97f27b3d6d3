"""Failures on purpose, in this process and by SIGKILL, and the invariants that must hold afterwards."""
