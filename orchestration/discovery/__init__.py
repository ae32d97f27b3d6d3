"""Which input is new: scans become pending triggers."""
