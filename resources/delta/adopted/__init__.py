"""Tables that others made, published through delta-spark."""
