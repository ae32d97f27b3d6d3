"""The applications that come with Drainmark."""
