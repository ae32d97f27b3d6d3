"""Records: ids, triggers, manifests, rows of the checkpoint table, names of files."""
