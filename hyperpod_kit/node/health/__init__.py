"""Whether a mount serves: probe in a child with a deadline, then a pure check, then a bounded repair."""
