"""Programs that take the place of mount clients in a rehearsal: same names, options and semantics, no AWS.

They run inside a node, on its system Python (3.8 or newer), and use nothing but the standard library.
"""
