"""Failures on purpose, in this process and by SIGKILL, and what must hold afterwards."""
