"""What AWS is asked about each kind of mount, one file for each; a kind that AWS knows nothing of says so."""
