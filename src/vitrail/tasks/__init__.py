"""What is learned, and how well: heads, losses, figures and reports."""
