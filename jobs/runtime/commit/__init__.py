"""The owner of a region and its commits: checkpoint, publication, rewind."""
