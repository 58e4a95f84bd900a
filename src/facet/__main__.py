"""Runs the `facet` command as `python -m facet`."""

import sys

try:
    from facet.cli import main
except KeyboardInterrupt:  # imports take a moment, in which there is nothing to stop yet
    sys.exit(130)

sys.exit(main())
