"""What a checkpoint holds, as a tree and flat tensors, and how a restore fills it: begin with `state.State`."""
