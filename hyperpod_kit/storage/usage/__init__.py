"""Who fills what: sums by user, group, directory and run, over trees that are too large to keep in memory."""
