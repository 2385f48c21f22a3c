"""The child process that reads definitions: `python -m gateway.reader ROLE`.

Definitions are hostile input, so they are read where a crash, an endless loop or a memory bomb
costs one child: the address space is bounded, every job has a budget of CPU, the environment holds
no secrets, and an audit hook refuses the network. The child ends when its stdin does, so no
gateway leaves one behind. Imports are kept few: a cold start is part of a connection's first build.
Other jobs on hostile input are functions of ours, by name: from bytes and a few words to bytes.

On the wire, both ways: the lengths of head and data, the head as MessagePack, the data.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import struct
import sys
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import Problem, Source, encode_build, unpack

LENGTHS = struct.Struct("!II")
MAX_ADDRESS_SPACE = 1536 * 1024 * 1024
MAX_BUILD_DATA = 160 * 1024 * 1024  # one like GitHub's needs 90
MAX_WORK_DATA = 256 * 1024 * 1024
MAX_ADVICE_DATA = 160 * 1024 * 1024
MAX_STACK = 64 * 1024 * 1024
RETIRE_ABOVE = 80 * 1024 * 1024  # a child that grew this large is replaced after its job
BUILD_CPU_SECONDS = 4.5
ADVICE_CPU_SECONDS = 20.0
WORK_CPU_SECONDS = 5.0
_BUDGETS = {
    "build": (BUILD_CPU_SECONDS, MAX_BUILD_DATA),
    "advise": (ADVICE_CPU_SECONDS, MAX_ADVICE_DATA),
    "work": (WORK_CPU_SECONDS, MAX_WORK_DATA),
}
_RECURSION = 2_000
_NICENESS = 5

# A kind of connection and what builds its tools, imported when it is first needed.
BUILDERS = {
    "openapi": "gateway.openapi.build:build_openapi",
    "arm": "gateway.azure.connector:build_arm",
    "manifest": "gateway.connectors.manifest:build_manifest",
}
_NETWORK = frozenset(
    {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "os.exec"}
    | {"socket.sendto", "os.system", "os.posix_spawn", "subprocess.Popen", "os.fork"}
)


class Request(msgspec.Struct):
    """What is asked of a child: another job, or tools, with a source, or else advice."""

    source: Source | None = None
    job: str = ""  # as `module:function`
    arguments: tuple[str, ...] = ()


class Answer(msgspec.Struct):
    """What comes of it: the data is what was asked for, unless there is an error."""

    error: dict[str, Any] | None = None
    retires: bool = False


def main() -> None:
    """Serve one job after the other until stdin ends."""
    role = sys.argv[1]
    # Whatever a library prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "wb", closefd=True)
    os.dup2(2, 1)
    _confine(role)
    if role == "build":
        _function(BUILDERS["openapi"])  # what most jobs need is there before the first one
    gc.disable()  # a job's garbage goes in one piece, after its answer
    while (job := _read(sys.stdin.buffer)) is not None:
        answer, data = _done(*job, role)
        answer.retires = answer.retires or _peak_memory() > RETIRE_ABOVE
        head = msgspec.msgpack.encode(answer)
        answers.write(LENGTHS.pack(len(head), len(data)) + head)
        answers.write(data)
        answers.flush()
        if answer.retires:
            return
        del job, answer, data
        _grant_cpu(0)
        gc.collect()


def _confine(role: str) -> None:
    _limit(resource.RLIMIT_AS, MAX_ADDRESS_SPACE)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.setrecursionlimit(_RECURSION)
    if role == "advise":
        os.nice(_NICENESS)
    sys.addaudithook(_refuse_network)


def _limit(kind: int, wanted: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(
        kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )


def _refuse_network(event: str, arguments: object) -> None:
    if event in _NETWORK:
        raise PermissionError(f"{event} is not for readers of definitions")


def _read(stream: BinaryIO) -> tuple[Request, bytes] | None:
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_size, data_size = LENGTHS.unpack(lengths)
    head, data = stream.read(head_size), stream.read(data_size)
    if len(data) < data_size:
        return None
    return msgspec.msgpack.decode(head, type=Request), data


def _done(request: Request, data: bytes, role: str) -> tuple[Answer, bytes | bytearray]:
    seconds, most = _BUDGETS["work" if request.job else role]
    _grant_cpu(seconds)
    _limit(resource.RLIMIT_DATA, most)
    try:
        if request.job:
            return Answer(), _function(request.job)(data, *request.arguments)
        if request.source is None:
            return Answer(), msgspec.msgpack.encode(_advice(unpack(data)))
        builder = _function(BUILDERS[request.source.kind])
        # Nobody but the builder holds the document's bytes, so that it can let go of them.
        return Answer(), encode_build(builder(unpack(data), request.source))
    except DefinitionUnreadable as error:
        return Answer(error.as_dict()), b""
    except RecursionError:
        return _refused("The definition is nested too deeply to be read.")
    except MemoryError:
        return _refused("The definition needs more memory than a reader may have.", retires=True)
    except ConfigInvalid as error:
        return _refused("; ".join(error.problems))
    except Exception as error:
        # The boundary between a document and the gateway: our own fault must not look like a crash.
        return _refused(f"The definition could not be read ({type(error).__name__}).")


def _grant_cpu(seconds: float) -> None:
    """As much from now on; a signal that nobody hears ends who takes more. 0: without end."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _refused(message: str, *, retires: bool = False) -> tuple[Answer, bytes]:
    error = DefinitionUnreadable(message, "Use a smaller or simpler definition.")
    return Answer(error.as_dict(), retires=retires), b""


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _advice(raw: bytes) -> tuple[Problem, ...]:
    from gateway.openapi.advice import advise  # half a second of imports

    return advise(raw)


def _peak_memory() -> int:
    """Of this program alone: getrusage also counts what the gateway was when it forked."""
    try:
        with open("/proc/self/status", "rb") as status:
            peak = next(line for line in status if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(peak.split()[1]) * 1024


if __name__ == "__main__":
    main()
