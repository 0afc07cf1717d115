"""``python -m omstore.cli``: the command line without its script."""

import sys

from omstore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
