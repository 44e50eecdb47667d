"""Training to segment and to detect: `--task segment` and `--task detect`."""
