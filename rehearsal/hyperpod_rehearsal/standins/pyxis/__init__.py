"""Stand-in of pyxis and enroot: a SPANK plugin with the same options (plugin.c)."""
