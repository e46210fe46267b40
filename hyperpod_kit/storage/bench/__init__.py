"""How fast a mount is and what it can do: measured in one scratch directory, within a budget of bytes, gone afterwards.

Order, of the files in measurements/: probes.py (what it can do), streams.py (own writers and readers) and fio.py where
fio is installed, small.py (many small files), then a replay of a checkpoint by `hyperpod_kit.storage.bench.replay` in
processes of its own.
"""
