"""Pre-training by a masked autoencoder: what it can be told, what is chosen, what it starts from, the run."""
