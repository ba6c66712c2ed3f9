"""`python -m tlite` is the same as `tlite`."""

import sys

from tlite.cli import main

sys.exit(main())
