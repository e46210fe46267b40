"""The commands of `hyperpod-kit node`, one file a group: `node/cli.py` imports the one that is called."""
