"""Discovery of new input: scans become pending triggers."""
