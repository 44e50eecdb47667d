"""Regression: one or several numbers per image."""
