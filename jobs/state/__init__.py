"""Keep: keyed state as an image and changes, and the values that aggregations merge."""
