"""Values and tensors as typed JSON and named tensors, and back, without pickle: begin with `codec`."""
