"""The n-th operation of a commit fails: begin with `faults`."""
