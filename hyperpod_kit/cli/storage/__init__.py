"""`hyperpod-kit storage`: one file a command, its view in `cli/views`."""
