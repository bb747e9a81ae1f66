"""`python -m iel` is the `iel` command."""

from iel.cli import main

if __name__ == "__main__":
    main()
