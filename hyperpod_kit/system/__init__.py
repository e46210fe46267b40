"""What every part needs of the operating system, once: files that are replaced whole, locks, mounts, processes, pauses.

Standard library only, Python 3.8: these files are part of the bundle.
"""
