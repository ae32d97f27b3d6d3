"""What `pyproject.toml` cannot say: the two files of Dagster's at the root are part of what is installed."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithDagsterFiles(build_py):
    """Copies them beside the control plane, where `drainmark dev` looks for them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        shipped = Path(self.build_lib, "orchestration", "shipped")
        shipped.mkdir(parents=True, exist_ok=True)
        for name in ("dagster.yaml", "workspace.yaml"):
            self.copy_file(name, str(shipped / name))


setup(cmdclass={"build_py": WithDagsterFiles})
