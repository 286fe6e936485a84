"""Execute a notebook through papermill, never touching its source."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import papermill
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from samebytes import paths, run, settings
from samebytes.errors import SamebytesError


def notebook(source: Path, output: Path, parameters: Mapping[str, Any], *, quiet: bool) -> None:
    """Execute ``source`` into ``output``, in the working directory: relative paths mean the same there as here.

    Parameters
    ----------
    quiet : bool
        False: what the cells print also goes to the terminal, as it comes.

    Raises
    ------
    SamebytesError
        With the cell's own message, where a cell failed or the kernel died.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            str(source),
            str(output),
            parameters=dict(parameters),
            progress_bar=False,
            log_output=False,
            stdout_file=None if quiet else sys.stdout,
            request_save_on_cell_execute=True,
            # The kernel's own log warns of unencrypted loopback traffic and of each interrupt.
            extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
        )
    except PapermillExecutionError as error:
        raise SamebytesError(f"{error.ename}: {error.evalue}\n  notebook: {output}") from None
    except DeadKernelError:
        raise SamebytesError(f"the notebook's kernel died; what was measured is kept\n  notebook: {output}") from None


def run_config(parameters: Mapping[str, Any], *, quiet: bool) -> Path:
    """Execute ``run_config.ipynb`` and return the record's path.

    The parameters are validated here already, so that a mistake costs no kernel start and the executed notebook of an
    earlier run stays as it is.
    """
    plan = settings.plan(parameters)
    run.check(plan)
    output = plan.record_path.parent / "notebooks" / f"{plan.label}.ipynb"
    given = {name: value for name, value in parameters.items() if value != settings.PARAMETERS[name][1]}
    notebook(paths.notebooks() / "run_config.ipynb", output, given, quiet=quiet)
    return plan.record_path
