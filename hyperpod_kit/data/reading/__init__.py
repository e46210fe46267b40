"""Bytes of files and objects: read, kept, asked for again."""
