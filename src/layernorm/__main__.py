# SPDX-License-Identifier: MIT
"""This file is what the command `layernorm` starts, and what makes `python -m layernorm` the same."""

import sys

# As shells say that a command was stopped by Ctrl-C.
STOPPED = 130


def main() -> None:
    """Run the command line; one that is stopped while it still loads ends in silence, not in a traceback."""
    try:
        from layernorm.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    command_line()


if __name__ == "__main__":
    main()
