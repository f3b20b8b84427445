"""`python -m bcvm`: see tools.cli."""
from bcvm.tools.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
