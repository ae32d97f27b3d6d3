"""A page for each region: one HTML file without scripts or links. Runs write it, `drainmark dev` serves it."""
