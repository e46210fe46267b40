"""An alert counts as sent once a sink has accepted it, and is tried until then: for every check of storage."""
