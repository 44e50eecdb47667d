"""Detection: boxes around objects, perhaps with outlines."""
