"""What makes the same steps faster on a GPU: recorded steps, streams, numbers read late."""
