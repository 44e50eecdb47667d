"""Reconstruction: a masked autoencoder, trained without labels."""
