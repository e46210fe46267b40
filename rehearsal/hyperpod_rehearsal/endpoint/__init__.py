"""The endpoint in front of every service, with its signatures and refusals: begin with `front_door`."""
