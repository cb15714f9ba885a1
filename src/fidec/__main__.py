"""`python -m fidec` is `fidec`."""

import sys

from fidec.cli import main

sys.exit(main())
