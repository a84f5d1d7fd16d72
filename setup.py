"""Copies artifacts.toml, which lives at the top of the source tree, into the package of a wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithTable(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copy(Path(__file__).parent / "artifacts.toml", Path(self.build_lib) / "ninfer_nb")


setup(cmdclass={"build_py": BuildWithTable})
