"""Isomorphic Embedding Learning: policies learned offline that can be sent to any goal."""

__version__ = "0.1.0"
