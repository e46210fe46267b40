"""The rules of a configuration, one file a topic; config/validate.py lists them."""
