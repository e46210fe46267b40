"""A node's creation: its steps in their order, the plan of them, and applying it."""
