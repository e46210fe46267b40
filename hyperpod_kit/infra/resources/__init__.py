"""The resources of a template, one file a service: `template` puts them together."""
