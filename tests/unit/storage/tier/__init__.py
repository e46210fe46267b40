"""storage tier."""
