"""storage quota."""
