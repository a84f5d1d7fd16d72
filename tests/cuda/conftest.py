"""Makes tests/support importable when only this folder is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
