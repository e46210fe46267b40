"""In which order samples come, as a function of seed, epoch and position: begin with `order`."""
