"""The child process that reads definitions: `python -m gateway.reader ROLE`.

Definitions are hostile input, so they are read where a crash, an endless loop or a memory bomb
costs one child: its memory is bounded, every job has a budget of CPU, the environment holds no
secrets, none of the gateway's descriptors is open here, and an audit hook refuses the network. The
child ends when its stdin does, so no gateway leaves a child behind. A job names a function of ours,
which makes bytes of bytes and a few words. On the wire, both ways: a length, then MessagePack.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from gateway.errors import DefinitionUnreadable
from gateway.limits import ADVICE_CPU_SECONDS, MAX_ADVISED_BYTES, READ_CPU_SECONDS, READER_BYTES
from gateway.model import Build, Problem, Source, encode_build, unpack
from gateway.naming import cut, visible
from gateway.openapi.document import read_definition
from gateway.system import close_inherited, confine, limit_cpu, peak_memory, yield_to_others

LENGTH = struct.Struct("!I")
# The function that builds tools, and those that make OpenAPI of another kind of definition first:
# they give the text, the source for the build, and a function that completes the build. Each is
# imported when it is needed.
_BUILD_OPENAPI = "gateway.openapi.build:build_openapi"
_TRANSLATE = {
    "arm": "gateway.azure.connector:translate_export",
    "manifest": "gateway.connectors.manifest:translate_manifest",
}
_REFUSED_EVENTS = frozenset(
    {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "os.exec"}
    | {"socket.sendto", "os.system", "os.posix_spawn", "subprocess.Popen", "os.fork"}
)


class Job(msgspec.Struct):
    """A request to a child: a function and its arguments."""

    function: str  # as `module:function`
    data: bytes
    arguments: tuple[str, ...] = ()


class JobResult(msgspec.Struct):
    """The child's answer: bytes, or an error."""

    data: bytes = b""
    error: tuple[str, str] | None = None  # message and hint
    retires: bool = False  # the child ends now


def build_tools(packed: bytes, source_text: str) -> bytes:
    """The tools of a definition."""
    return encode_build(build_definition(packed, msgspec.json.decode(source_text, type=Source)))


def build_definition(packed: bytes, source: Source) -> Build:
    """The tools of a definition of any kind; raises DefinitionUnreadable."""
    build_openapi: Callable[[bytes, Source], Build] = _import_function(_BUILD_OPENAPI)
    if source.kind not in _TRANSLATE:
        return build_openapi(unpack(packed), source)
    raw, source, complete = _import_function(_TRANSLATE[source.kind])(unpack(packed), source)
    build: Build = complete(build_openapi(raw, source))
    return build


def advise(packed: bytes) -> bytes:
    """The problems that openapi-spec-validator finds in a definition: advice, never a verdict.

    Every tenth real definition fails it and works all the same. It takes seconds a megabyte.
    """
    raw = unpack(packed)
    if len(raw) > MAX_ADVISED_BYTES:
        words = f"validation skipped: larger than {MAX_ADVISED_BYTES // 1024 // 1024} MB"
        return msgspec.msgpack.encode((Problem("info", "", words),))
    definition = read_definition(raw)
    try:
        problems = tuple(islice(_validate(definition), 20))
    except Exception as error:
        # The validator ends in exceptions of all kinds on definitions that are fine to us.
        problems = (Problem("info", "", f"validation stopped: {type(error).__name__}"),)
    return msgspec.msgpack.encode(problems)


def _validate(definition: dict[str, Any]) -> Iterator[Problem]:
    # Half a second of imports, which only this role needs.
    from jsonschema.exceptions import ValidationError
    from jsonschema_path import SchemaPath
    from openapi_spec_validator.shortcuts import get_validator_cls

    path = SchemaPath.from_dict(definition, handlers=_NO_RETRIEVAL)
    for error in get_validator_cls(definition)(path).iter_errors():
        has_path = isinstance(error, ValidationError)
        where = "".join(f"/{step}" for step in error.absolute_path) if has_path else ""
        message = error.message if has_path else str(error)
        yield Problem("info", where, cut(visible(str(message)), 300))


def _refuse_reference(uri: str) -> Any:
    raise LookupError(f"references to other documents are not followed: {uri[:100]}")


# A scheme without a handler would be left to urllib: all schemes that urllib knows are here.
_NO_RETRIEVAL = dict.fromkeys(("http", "https", "file", "ftp", "data", ""), _refuse_reference)


def main() -> None:
    """Does one job after the other until stdin ends."""
    close_inherited()
    # Whatever a library prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    advises = sys.argv[1] == "advise"
    confine(READER_BYTES)
    sys.addaudithook(_refuse_network)
    if advises:
        yield_to_others()
    else:
        _import_function(_BUILD_OPENAPI)  # most jobs need it: imported before the first job
    gc.disable()  # a job's garbage is collected at once, after its answer
    while (job := _next_job(sys.stdin.buffer)) is not None:
        # SIGPROF ends a child that takes more CPU time.
        limit_cpu(ADVICE_CPU_SECONDS if advises else READ_CPU_SECONDS)
        answer = _do_job(job)
        limit_cpu(0)
        # The allocator gives little back, so a child that grew large is replaced.
        answer.retires = answer.retires or peak_memory() > READER_BYTES // 2
        body = msgspec.msgpack.encode(answer)
        answers.write(LENGTH.pack(len(body)))
        answers.write(body)
        answers.flush()
        if answer.retires:
            return
        del job, answer, body
        gc.collect()


def _refuse_network(event: str, arguments: object) -> None:
    if event in _REFUSED_EVENTS:
        raise PermissionError(f"{event} is not for readers of definitions")


def _next_job(stream: BinaryIO) -> Job | None:
    length = stream.read(LENGTH.size)
    body = stream.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else b""
    return msgspec.msgpack.decode(body, type=Job) if body else None


def _do_job(job: Job) -> JobResult:
    try:
        return JobResult(_import_function(job.function)(job.data, *job.arguments))
    except DefinitionUnreadable as error:
        return JobResult(error=(error.message, error.hint))
    except RecursionError:
        return _refuse("The definition is nested too deeply to be read.")
    except (MemoryError, SystemError):  # libyaml raises SystemError when memory ends
        return _refuse("The definition needs more memory than a reader may have.", retires=True)
    except Exception as error:
        # The boundary between a document and the gateway: our own fault must not look like a crash.
        return _refuse(f"The definition could not be read ({type(error).__name__}).")


def _refuse(message: str, *, retires: bool = False) -> JobResult:
    return JobResult(error=(message, "Use a smaller or simpler definition."), retires=retires)


def _import_function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


if __name__ == "__main__":
    main()
