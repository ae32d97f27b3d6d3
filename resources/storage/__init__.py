"""Storage of files: folders of this machine and prefixes of buckets."""
