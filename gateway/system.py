"""Functions that work on every operating system, and hide where the systems differ.

Linux has everything. macOS has all but the spreading of connections over several workers. Windows
has one process: no workers, no bounds on the memory and CPU time of readers (their deadlines hold),
and processes that a stdio server has started itself do not end with it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

ON_WINDOWS = sys.platform == "win32"


def _find(name: str) -> Any:
    """A module that not every system has; None where it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


fcntl, resource = map(_find, ("fcntl", "resource"))


def signal_number(name: str) -> int:
    """The number of a signal; where the system has no such signal, that of SIGTERM."""
    return int(getattr(signal, name, signal.SIGTERM))


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs the coroutine to its end, on the faster event loop where it is installed."""
    (_find("uvloop") or import_module("asyncio")).run(main)


def hear_signal(number: int, callback: Callable[[], None]) -> Callable[[], object]:
    """Has a signal call back on the running loop; the function returned ends that."""
    loop = import_module("asyncio").get_running_loop()  # readers start without asyncio
    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:  # Windows
        previous = signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))
        return lambda: signal.signal(number, previous)
    return lambda: loop.remove_signal_handler(number)


def lock_file(descriptor: int) -> None:
    """Takes the lock of a file; raises BlockingIOError where another process has it."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def signal_group(group: int, number: int) -> bool:
    """Signals a process and the processes it started; whether any of them was still running."""
    if ON_WINDOWS and number == 0:
        return False  # on Windows, 0 would not ask but send Ctrl-C
    try:
        getattr(os, "killpg", os.kill)(group, number)
    except OSError:
        return False
    return True


def is_running(pid: int) -> bool:
    """Whether there is a process of this number; True where the system does not tell."""
    try:
        if not ON_WINDOWS:
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def confine(memory_bytes: int) -> None:
    """Bounds this process: limited memory, no core file, and SIGPROF ends it."""
    if resource is None:
        return
    for kind, limit in ((resource.RLIMIT_DATA, memory_bytes), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (soft, hard))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def limit_cpu(seconds: float) -> None:
    """Has SIGPROF sent to this process once it has used so much CPU time from now; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def close_inherited() -> None:
    """Closes the files that the parent had open: uvloop leaves them open in its children."""
    if hasattr(os, "sysconf"):
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def yield_to_others() -> None:
    """Lowers the priority of this process: it runs when other processes have nothing to do."""
    if hasattr(os, "nice"):
        os.nice(5)


def peak_memory() -> int:
    """The peak memory of this program alone: getrusage also counts the gateway before the fork."""
    try:
        with open("/proc/self/status", "rb") as status:
            peak = next(line for line in status if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if resource else 0
    return int(peak.split()[1]) * 1024


def most_open_files() -> int | None:
    """How many files this process may have open; None: the system has no such bound."""
    return None if resource is None else int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
