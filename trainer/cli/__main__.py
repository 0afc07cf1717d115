"""``python -m trainer.cli``: the command without its script, as `torchrun` starts it."""

import sys

from trainer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
