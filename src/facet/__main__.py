"""Runs the `facet` command as `python -m facet`."""

import sys

from facet.cli import main

sys.exit(main())
