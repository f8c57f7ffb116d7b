"""A notebook of docs/ executed from its first cell to its last, in an empty folder.

    python tests/helpers/notebook_run.py docs/first_hour.ipynb

writes it back with its outputs (`make notebook`). Edit the notebook as you like before: what Jupyter leaves of times
and of the machine does not stay.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

KERNEL = "python3"
CELL_SECONDS = 600  # more than any cell should take on a loaded machine
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": KERNEL},
    "language_info": {"name": "python"},
}


def executed(notebook: Path, folder: Path) -> NotebookNode:
    """The notebook with outputs of a run in `folder`, by this Python. Times and the machine's versions are left out.

    Args:
        folder: to run in; what the notebook writes stays there.
    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails.
    """
    read = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as kernels:
        kernel = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Python 3",
            "language": "python",
            "env": {"IPYTHONDIR": str(Path(kernels) / "ipython")},  # a user's start-up files would run too
        }
        (Path(kernels) / KERNEL).mkdir()
        (Path(kernels) / KERNEL / "kernel.json").write_text(json.dumps(kernel), "utf-8")
        # Only this folder: the kernels that the user has installed are of other environments.
        specs = KernelSpecManager(kernel_dirs=[kernels], ensure_native_kernel=False)
        manager = AsyncKernelManager(kernel_name=KERNEL, kernel_spec_manager=specs)
        there = {"metadata": {"path": str(folder)}}
        options = {"timeout": CELL_SECONDS, "coalesce_streams": True, "record_timing": False, "resources": there}
        NotebookClient(read, km=manager, **options).execute()
    for cell in read.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":  # warnings of packages about this machine, and progress
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    read.metadata = nbformat.from_dict(_METADATA)
    return read


def main(path: str) -> None:
    notebook = Path(path).resolve()
    with tempfile.TemporaryDirectory() as folder:
        done = executed(notebook, Path(folder))
    temporary = notebook.with_suffix(".tmp")
    nbformat.write(done, temporary)
    os.replace(temporary, notebook)
    print(f"{notebook}: {notebook.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:])
