"""One file a concern: pure functions (Settings, Facts) -> findings. None raises, none asks anybody."""
