"""Keep: keyed state as an image and changes; values that are merged in `aggregations/`, handlers in `handlers/`."""
