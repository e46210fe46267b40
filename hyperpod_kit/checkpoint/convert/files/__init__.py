"""Files of other programs read by pieces, and a root or a file written from them."""
