"""What dead trainers left in shared memory, brought to storage: begin with `flush`."""
