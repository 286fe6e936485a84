"""Execute a notebook through papermill, never touching its source."""

from __future__ import annotations

import logging
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import papermill
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from samebytes import paths, run, settings
from samebytes.errors import SamebytesError

# What papermill logs here, the error that is raised says too.
logging.getLogger("papermill").addHandler(logging.NullHandler())


def _manager(errors: IO[bytes]) -> type[AsyncKernelManager]:
    """Return a manager whose kernel is reached over Unix sockets and has ``errors`` as its stderr.

    Over TCP its ports are chosen before it takes them, and another kernel that starts meanwhile may be quicker. These
    sockets are abstract (Linux): no files to be left behind.

    What a cell writes to stderr is captured all the same. The rest are the kernel's own words: now and then its threads
    race while it shuts down (ipykernel 7.4) and print a traceback, which belongs to no run.
    """

    class Manager(AsyncKernelManager):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.transport, self.ip = "ipc", f"@samebytes-{secrets.token_hex(8)}"

        async def _async_pre_start_kernel(self, **options: Any) -> tuple[list[str], dict[str, Any]]:
            return await super()._async_pre_start_kernel(**{**options, "stderr": errors})

        pre_start_kernel = _async_pre_start_kernel

    return Manager


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    said = errors.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(said) if line.strip()), None)
    return "" if last is None else f"\n  its last words: {last}"


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
    with tempfile.TemporaryFile() as errors:
        try:
            papermill.execute_notebook(
                str(source),
                str(output),
                parameters=dict(parameters),
                progress_bar=False,
                log_output=False,
                stdout_file=None if quiet else sys.stdout,
                request_save_on_cell_execute=True,
                kernel_manager_class=_manager(errors),
                # The kernel's own log warns of unencrypted loopback traffic and of each interrupt.
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
            )
        except PapermillExecutionError as error:
            raise SamebytesError(f"{error.ename}: {error.evalue}\n  notebook: {output}") from None
        except DeadKernelError:
            raise SamebytesError(
                f"the notebook's kernel died; what was measured is kept\n  notebook: {output}"
            ) from None
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            # that of a kernel that does not start has no class of its own
            raise SamebytesError(f"the notebook's kernel did not start: {error}{_last_words(errors)}") from None
        except KeyboardInterrupt:
            # The task that waited for the cell is dropped with its DeadKernelError, which asyncio would print.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            raise


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
