"""Adds the commit to what is built, because wheels and source distributions have no git."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

FOLDER = Path(__file__).parent
FILE = Path("fedjax_fair", "commit.txt")


def write_commit(folder: str) -> None:
    """Writes the commit of the checkout, or of the source distribution, if there is one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(FOLDER), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", "setup.py")  # The checkout may be of another project.
        commit = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        commit = (FOLDER / FILE).read_text() if (FOLDER / FILE).exists() else ""
    if commit:
        (Path(folder) / FILE).unlink(missing_ok=True)  # It may be a link to that of the checkout.
        (Path(folder) / FILE).write_text(commit)


class BuildWithCommit(build_py):
    """Builds the package with its commit; an editable installation reads that of the checkout."""

    def run(self):
        """Builds the files."""
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class SourceWithCommit(sdist):
    """Makes a source distribution with its commit."""

    def make_release_tree(self, base_dir, files):
        """Copies the files to a folder."""
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SourceWithCommit})
