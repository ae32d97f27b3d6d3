"""Input for the applications that come with Drainmark."""
