"""Arithmetic over sample numbers that many places need."""
