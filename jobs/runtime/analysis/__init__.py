"""What is found out before a region is claimed: plans, column types, what runs many ids at once."""
