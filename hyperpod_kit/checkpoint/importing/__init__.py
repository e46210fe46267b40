"""What another program saved, as the first checkpoint of a root."""
