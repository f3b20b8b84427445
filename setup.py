"""Puts bcvm.pth beside the package, in wheels and in editable installs; everything else is in pyproject.toml."""
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PTH = "bcvm.pth"


class WithPth(build_py):
    """The file is part of what is built, at the root of the folder that becomes site-packages."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file(PTH, str(Path(self.build_lib) / PTH))

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib) / PTH)]


class EditableWithPth(editable_wheel):
    """An editable wheel leads to the source folder by a .pth file of its own; ours goes beside that."""

    def _run_build_commands(self, dist_name, unpacked_wheel, build_lib, tmp_dir):
        result = super()._run_build_commands(dist_name, unpacked_wheel, build_lib, tmp_dir)
        self.copy_file(PTH, str(Path(unpacked_wheel) / PTH))
        return result


setup(cmdclass={"build_py": WithPth, "editable_wheel": EditableWithPth})
