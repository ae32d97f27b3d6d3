"""Keyed state as an image and changes; merged values are in `aggregations/`, handlers in `handlers/`."""
