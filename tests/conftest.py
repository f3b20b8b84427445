"""Code that the tests have made is kept in a folder of this checkout, so that it neither comes from the user's programs nor pushes theirs out."""
from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("BCVM_KERNEL_CACHE", str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "kernels"))
