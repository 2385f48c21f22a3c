"""Definitions that mean harm, by name: large, deep, multiplied, wrongly encoded, never ending.

Each is made when it is asked for. What a peer has to do about sending it (packing, dripping, never
ending) is said beside the bytes, so that the whole family can be put through a running gateway.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.slow import multiplied
from tests.slow.multiplied import HEAD, MAX_CONTAINERS, ONE_PATH, plus

MAX_ITEMS = 600_000  # GitHub's 13 MB have about 180,000
MAX = 33_554_432  # limits.max_spec_bytes
YAML = (
    b"openapi: 3.0.0\ninfo: {title: T, version: '1'}\nservers: [{url: 'http://127.0.0.1:9'}]\n"
    b"paths: {/a: {get: {operationId: a, responses: {}}}}\n"
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A definition and how it is sent."""

    make: Callable[[], bytes]
    encoding: str = ""
    manner: str = "whole"  # whole | endless | drip | silent


def _padded(size: int) -> bytes:
    """So many bytes of ordinary descriptions."""
    text = b'{"type":"string","description":"%b"}' % (b"Words of some length. " * 50)
    count = (size - len(HEAD) - len(ONE_PATH) - 100) // (len(text) + 12)
    parts = b",".join(b'"s%06d":%b' % (n, text) for n in range(count - 1))
    body = plus(b'"components":{"schemas":{%b}}' % parts)
    return body + b" " * (size - len(body))


def _yaml_aliases() -> bytes:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    return YAML + "\n".join(["a0: &a0 [x, x]", *levels]).encode()


def _yaml_merges() -> bytes:
    """Merge keys that copy a thousand keys, thousands of times."""
    base = "b: &b\n" + "".join(f"  k{n}: 1\n" for n in range(1_000))
    return YAML + (base + "".join(f"m{n}: {{<<: *b, x{n}: 1}}\n" for n in range(100_000))).encode()


def _mixed() -> bytes:
    """As many containers, items and texts as may be: what no real definition has at once."""
    count = MAX_CONTAINERS // 2 - 1_000
    text = b'{"a":[1],"b":"%b"}' % (b"z" * (MAX // count - 50))
    return plus(
        b'"components":{"schemas":{%b}}'
        % b",".join(b'"s%06d":%b' % (n, text) for n in range(count))
    )


FAMILY: dict[str, Hostile] = {
    "just-below": Hostile(lambda: _padded(MAX - 10)),
    "just-above": Hostile(lambda: _padded(MAX + 1_000)),
    "string-30MB-emoji": Hostile(lambda: plus(b'"x":"%b"' % (b"s" * 30_000_000 + "😀".encode()))),
    "string-30MB-escapes": Hostile(lambda: plus(b'"x":"%b"' % (b"\\ud83d\\ude00" * 2_500_000))),
    "key-30MB": Hostile(lambda: plus(b'"%b":1' % (b"k" * 30_000_000))),
    "description-30MB": Hostile(
        lambda: plus(b'"x":1').replace(
            b'"responses":{}', b'"description":"%b"' % (b"word " * 6_000_000)
        )
    ),
    "digits-30MB": Hostile(lambda: plus(b'"x":%b' % (b"9" * 30_000_000))),
    "exponent": Hostile(lambda: plus(b'"x":1e999999')),
    "nan": Hostile(lambda: plus(b'"x":NaN')),
    "keys-most": Hostile(
        lambda: plus(b'"x":{%b}' % b",".join(b'"k%d":1' % n for n in range(MAX_ITEMS - 10)))
    ),
    "keys-twice": Hostile(lambda: plus(b'"x":{%b}' % b",".join([b'"k":1'] * (MAX_ITEMS - 10)))),
    "mixed": Hostile(_mixed),
    "deep-lists": Hostile(lambda: plus(b'"x":' + b"[" * 150_000 + b"]" * 150_000)),
    "deep-schema": Hostile(
        lambda: plus(b'"x":1').replace(
            b'"responses":{}',
            b'"requestBody":{"content":{"application/json":{"schema":'
            + b'{"items":' * 900
            + b"{}"
            + b"}" * 900
            + b"}}}",
        )
    ),
    "surrogate": Hostile(lambda: plus(b'"x":"\\ud800"')),
    "utf-16-padded": Hostile(lambda: _padded(16_000_000).decode().encode("utf-16")),
    "cp1252-30MB": Hostile(lambda: plus(b'"x":"%b"' % (b"\xe9" * 30_000_000))),
    "nulls-30MB": Hostile(lambda: b"\0" * 30_000_000),
    "random-30MB": Hostile(lambda: random.Random(1).randbytes(30_000_000)),
    "not-json-30MB": Hostile(lambda: plus(b'"x":"%b" oops' % (b"s" * 30_000_000))),
    "yaml-scalar-quoted": Hostile(lambda: YAML + b'x: "' + b"\\U0001F600" * 3_000_000 + b'"'),
    "yaml-lines-3e6": Hostile(lambda: YAML + b"x:\n" + b"- a\n" * 3_000_000),
    "yaml-deep-flow": Hostile(lambda: YAML + b"x: " + b"[" * 150_000 + b"]" * 150_000),
    "yaml-deep-block": Hostile(lambda: YAML + b"".join(b" " * n + b"a:\n" for n in range(7_000))),
    "yaml-aliases": Hostile(_yaml_aliases),
    "yaml-merges": Hostile(_yaml_merges),
    "yaml-self-alias": Hostile(lambda: YAML + b"x: &x [*x]\n"),
    "yaml-tags": Hostile(lambda: YAML + b"x: !!python/object/apply:os.system ['true']\n"),
    "yaml-documents": Hostile(lambda: b"---\na: 1\n" * 190_000),
    "gzip-bomb": Hostile(lambda: gzip.compress(b" " * 1_000_000_000, 6), "gzip"),
    "br": Hostile(lambda: b"\x0b\x02\x80", "br"),
    "endless": Hostile(lambda: HEAD + b',"x":"', manner="endless"),
    "drip": Hostile(lambda: HEAD + b',"x":"', manner="drip"),
    "silent": Hostile(lambda: b"", manner="silent"),
    "refs-loop": Hostile(multiplied.loop),
    "refs-chain": Hostile(lambda: multiplied.chain(100_000)),
    "refs-path-items": Hostile(lambda: multiplied.chain_of_paths(100_000)),
    "refs-exponential-allOf": Hostile(multiplied.exponential),
    "refs-crossed-wide": Hostile(lambda: multiplied.crossed(1_600, 1_600)),
    "refs-crossed-words": Hostile(lambda: multiplied.crossed(3_000, 2_000, words=5_000)),
    "refs-discriminator": Hostile(multiplied.discriminator),
    "microsoft": Hostile(multiplied.microsoft),
    "operations-50k": Hostile(lambda: multiplied.operations(50_000)),
    "operations-9000x900": Hostile(lambda: multiplied.busy_operations(9_000, 900)),
    "parameters-100k": Hostile(lambda: multiplied.parameters(100_000)),
    "long-description": Hostile(lambda: multiplied.long("description")),
    "long-path": Hostile(lambda: multiplied.long("path")),
    "long-property": Hostile(lambda: multiplied.long("property")),
    "enum-most": Hostile(lambda: multiplied.enum(MAX_ITEMS - 10)),
    "patterns-redos": Hostile(lambda: multiplied.patterns(2_000, "^(a+)+(b|b)*%d$")),
    "servers": Hostile(multiplied.servers),
    "security": Hostile(multiplied.security),
}
