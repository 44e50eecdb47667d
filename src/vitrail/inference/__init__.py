"""From any image to a model's answer: preprocessing, normalising, batching and the forward pass, each written once."""
