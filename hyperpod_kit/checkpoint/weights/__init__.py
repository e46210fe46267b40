"""A model's weights out of a checkpoint that need not fit it: begin with `weights.load_weights`."""
