"""The version, alone in a file that imports nothing."""

__version__ = "0.2.1"
