"""Many files at once: brought to a place, put together, made for a test."""
