"""The process beside each rank that seals, writes and commits, what it needs, and what goes on when it is gone."""
