"""Adapters: what bcvm knows of each tensor library. Importing this package registers NumPy's; MindSpore's follows when the program imports it."""
from bcvm.frameworks import numpy_  # noqa: F401
from bcvm.vm.libraries import when_imported


def _mindspore() -> None:
    from bcvm.frameworks import cells, mindspore, mindspore_bindings, mindspore_python, mindspore_resize  # noqa: F401
    mindspore.register()
    cells.register()
    mindspore_python.register()


when_imported("mindspore", _mindspore)
