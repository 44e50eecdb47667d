"""What tasks share whose answers lie inside the image: maps at several strides on a backbone, cases in the report."""
