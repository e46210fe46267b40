"""Requests to AWS with nothing but the standard library: credentials, signatures, one HTTP exchange."""
