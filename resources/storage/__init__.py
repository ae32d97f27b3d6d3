"""Where files lie: folders of this machine and prefixes of buckets."""
