"""Adapters: what bcvm knows of each tensor library. Importing this package registers NumPy's; MindSpore's follows when it is imported."""
from bcvm.frameworks import numpy_  # noqa: F401
