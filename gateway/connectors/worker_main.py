"""The child process that reads definitions: `python -m gateway.connectors.worker_main ROLE`.

Definitions are hostile input, so they are read where a crash, an endless loop or a memory bomb
costs one child: the address space is bounded, every job has a budget of CPU, the environment holds
no secrets, and an audit hook refuses the network. The child ends when its stdin does, so no
gateway leaves one behind. Imports are kept few: a cold start is part of a connection's first build.
Other jobs on hostile input are functions of ours, by name: from bytes and a few words to bytes.

On the wire, both ways: the lengths of head and data, the head as MessagePack, the data.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import struct
import sys
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import Problem, Source, encode_build, unpack

LENGTHS = struct.Struct("!II")
MAX_ADDRESS_SPACE = 1536 * 1024 * 1024
MAX_BUILD_DATA = 256 * 1024 * 1024
MAX_ADVICE_DATA = 66 * 1024 * 1024  # real definitions of four megabytes take 54
SPARE_DATA = 16 * 1024 * 1024  # beyond what the shape of a document explains
_PART_BYTES = 900  # for an object or a list of it; one like GitHub's needs 700
_ITEM_BYTES = 100  # for a comma or a line
_OPERATION_BYTES = 32 * 1024  # for an operation: its input, whatever schemas that is made of
_MAX_OPERATIONS = 1_200  # that count so
MAX_STACK = 64 * 1024 * 1024
RETIRE_ABOVE = 80 * 1024 * 1024  # a child that grew this large is replaced after its job
BUILD_CPU_SECONDS = 4
ADVICE_CPU_SECONDS = 20
WORK_CPU_SECONDS = 5
MAX_ADVISED_BYTES = 4 * 1024 * 1024  # seconds of CPU a megabyte
_RECURSION = 2_000
_NICENESS = 5

# A kind of connection and what builds its tools, imported when it is first needed.
BUILDERS = {
    "openapi": "gateway.connectors.openapi:build_openapi",
    "arm": "gateway.connectors.arm_build:build_arm",
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
        gc.collect()
        _limit(resource.RLIMIT_DATA, MAX_BUILD_DATA)


def _confine(role: str) -> None:
    _limit(resource.RLIMIT_AS, MAX_ADDRESS_SPACE)
    _limit(resource.RLIMIT_CORE, 0)
    sys.setrecursionlimit(_RECURSION)
    if role == "advise":
        os.nice(_NICENESS)
    _limit(resource.RLIMIT_DATA, MAX_ADVICE_DATA if role == "advise" else MAX_BUILD_DATA)
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


def _done(request: Request, data: bytes, role: str) -> tuple[Answer, bytes]:
    budget = BUILD_CPU_SECONDS if role == "build" else ADVICE_CPU_SECONDS
    _grant_cpu(WORK_CPU_SECONDS if request.job else budget)
    try:
        if request.job:
            return Answer(), _function(request.job)(data, *request.arguments)
        if request.source is None:
            return Answer(), msgspec.msgpack.encode(_advice(unpack(data)))
        builder = _function(BUILDERS[request.source.kind])
        # Nobody but the builder holds the document's bytes, so that it can let go of them.
        return Answer(), encode_build(builder(_granted(unpack(data)), request.source))
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


def _grant_cpu(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + seconds)


def _granted(raw: bytes) -> bytes:
    """The document, with as much memory as its shape needs: not for a text what is for parts."""
    parts = _PART_BYTES * (raw.count(b"{") + raw.count(b"["))
    items = _ITEM_BYTES * (raw.count(b",") + raw.count(b"\n"))
    operations = _OPERATION_BYTES * min(raw.count(b"responses"), _MAX_OPERATIONS)
    wanted = _data_in_use() + SPARE_DATA + len(raw) + parts + items + operations
    _limit(resource.RLIMIT_DATA, min(wanted, MAX_BUILD_DATA))
    return raw


def _data_in_use() -> int:
    try:
        with open("/proc/self/statm", "rb") as sizes:
            return int(sizes.read().split()[5]) * resource.getpagesize()
    except OSError:
        return MAX_BUILD_DATA


def _refused(message: str, *, retires: bool = False) -> tuple[Answer, bytes]:
    error = DefinitionUnreadable(message, "Use a smaller or simpler definition.")
    return Answer(error.as_dict(), retires=retires), b""


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _advice(raw: bytes) -> tuple[Problem, ...]:
    if len(raw) > MAX_ADVISED_BYTES:
        raise DefinitionUnreadable(f"larger than {MAX_ADVISED_BYTES // 1024 // 1024} MB")
    from gateway.connectors.openapi.advice import advise  # half a second of imports

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
