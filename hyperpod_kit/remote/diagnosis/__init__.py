"""Why a node is not what it should be: begin with `diagnose`."""
