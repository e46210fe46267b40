"""The documentation site and its tests: what is read out of the code, and what is demanded of the pages."""
