"""Two hostile users act at random while root and another user run every command on what is theirs."""
