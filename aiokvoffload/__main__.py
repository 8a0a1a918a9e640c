"""`python -m aiokvoffload` is the `aiokvoffload` command."""

import sys

from aiokvoffload.cli.main import main

sys.exit(main())
