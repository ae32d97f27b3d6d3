"""Which files are new: scans of folders and of prefixes in buckets."""
