"""What every command shares: output, options, help, and how a command line ends. Begin with `output`."""
