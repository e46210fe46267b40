"""storage usage."""
