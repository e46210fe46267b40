"""The command line of `hyperpod-kit job`: its parser, and its commands that look from outside."""
