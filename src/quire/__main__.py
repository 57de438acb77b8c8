import sys

from quire.tools.cli import main

sys.exit(main())
