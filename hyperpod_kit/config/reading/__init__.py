"""A configuration file as text, with the place of every value: JSON and YAML read alike. Begin with `document`."""
