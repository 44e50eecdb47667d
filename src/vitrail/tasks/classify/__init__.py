"""Classification: a class for each image, or several."""
