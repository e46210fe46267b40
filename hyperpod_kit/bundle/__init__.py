"""The lifecycle bundle: render, manifest, upload."""
