"""What a trainer and its agent, and the agents of a run, say to each other."""
