"""`hyperpod-kit storage`: one file a command, its view beside it."""
