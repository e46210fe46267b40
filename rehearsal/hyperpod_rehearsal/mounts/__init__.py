"""What stands in for each kind of mount in a rehearsal, one file for each."""
