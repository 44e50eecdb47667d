"""A recipe is a script beside the others: its folder is on the path when it runs, and here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
