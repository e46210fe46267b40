"""The command lines of programs as tables: `specs` describes a command, `program` parses by it and shows its help."""
