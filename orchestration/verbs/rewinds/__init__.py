"""What goes back to an earlier state: regions, the readers of their tables, single files."""
