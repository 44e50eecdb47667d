"""`python -m vitrail` is the command."""

from vitrail.cli import main

if __name__ == "__main__":
    main()
