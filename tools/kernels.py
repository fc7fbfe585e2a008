"""Kernels that are forked from a process which has imported the packages that chapters use.

Importing them takes ten seconds of a kernel's time. `use` makes it happen once for all notebooks of
a process.
"""

import multiprocessing
import os
from importlib.metadata import EntryPoint
from multiprocessing.context import ForkServerContext
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

PACKAGES = ["ipykernel.kernelapp", "IPython.display", "matplotlib.pyplot", "pandas", "scipy.stats"]
PACKAGES += ["torch._dynamo", "mergebook.ledger", "mergebook.plots"]  # optimizers need the first
_CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")


def serve(folder: str, command: list[str]) -> None:
    """Run a kernel, in a process of its own, until it is shut down."""
    import pandas as pd
    from ipykernel.kernelapp import launch_new_instance

    pd.set_option("display.max_columns", 20)  # as pandas decides if a kernel imports it
    os.setsid()
    os.chdir(folder)
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # the kernel ends with it
    launch_new_instance(argv=[*command, parent])


class Forked:
    """The part of `subprocess.Popen` that a provisioner uses, of a process that was forked."""

    stdin = stdout = stderr = None

    def __init__(self, folder: str, command: list[str]) -> None:
        self._process = _CONTEXT.Process(target=serve, args=(folder, command))
        self._process.start()
        self.pid: int = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class ForkedProvisioner(LocalProvisioner):
    """Starts IPython's kernel by a fork; what its command would run is imported already."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        options = cmd[cmd.index("ipykernel_launcher") + 1 :]
        self.cwd = kwargs.get("cwd") or os.getcwd()
        self.process: Any = Forked(self.cwd, options)
        self.pid = self.pgid = self.process.pid
        return self.connection_info


def use() -> None:
    """Start all kernels of this process by a fork."""
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel sets it
    _CONTEXT.set_forkserver_preload(PACKAGES)
    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "forked"
    entry = EntryPoint("forked", f"{__name__}:ForkedProvisioner", factory.GROUP_NAME)
    factory.provisioners["forked"] = entry
