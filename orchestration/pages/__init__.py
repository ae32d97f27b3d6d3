"""A page a region: one file of HTML without a script or an address, kept by runs and served by `drainmark dev`."""
