"""What a support archive has in it, and what is taken out before: begin with `collecting`."""
