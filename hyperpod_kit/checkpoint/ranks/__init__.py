"""What the ranks of a run tell each other and agree on, in few collectives: begin with `collectives.Ranks`."""
