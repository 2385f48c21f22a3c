"""Definitions that mean harm, by name: large, deep, multiplied, wrongly encoded, never ending.

Each is made when it is asked for. What a peer has to do about sending it (packing, dripping, never
ending) is said below, so that the whole family can be put through a running gateway.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

from tests.slow import multiplied
from tests.slow.multiplied import HEAD, MAX_CONTAINERS, ONE_PATH, plus

MAX_ITEMS = 600_000  # GitHub's 13 MB have about 180,000
MAX = 33_554_432  # limits.max_spec_bytes
YAML = (
    b"openapi: 3.0.0\ninfo: {title: T, version: '1'}\nservers: [{url: 'http://127.0.0.1:9'}]\n"
    b"paths: {/a: {get: {operationId: a, responses: {}}}}\n"
)


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


FAMILY: dict[str, Callable[[], bytes]] = {
    "just-below": lambda: _padded(MAX - 10),
    "just-above": lambda: _padded(MAX + 1_000),
    "string-30MB-emoji": lambda: plus(b'"x":"%b"' % (b"s" * 30_000_000 + "😀".encode())),
    "string-30MB-escapes": lambda: plus(b'"x":"%b"' % (b"\\ud83d\\ude00" * 2_500_000)),
    "key-30MB": lambda: plus(b'"%b":1' % (b"k" * 30_000_000)),
    "description-30MB": lambda: plus(b'"x":1').replace(
        b'"responses":{}', b'"description":"%b"' % (b"word " * 6_000_000)
    ),
    "digits-30MB": lambda: plus(b'"x":%b' % (b"9" * 30_000_000)),
    "exponent": lambda: plus(b'"x":1e999999'),
    "nan": lambda: plus(b'"x":NaN'),
    "keys-most": lambda: plus(
        b'"x":{%b}' % b",".join(b'"k%d":1' % n for n in range(MAX_ITEMS - 10))
    ),
    "keys-twice": lambda: plus(b'"x":{%b}' % b",".join([b'"k":1'] * (MAX_ITEMS - 10))),
    "mixed": _mixed,
    "deep-lists": lambda: plus(b'"x":' + b"[" * 150_000 + b"]" * 150_000),
    "deep-schema": lambda: plus(b'"x":1').replace(
        b'"responses":{}',
        b'"requestBody":{"content":{"application/json":{"schema":'
        + b'{"items":' * 900
        + b"{}"
        + b"}" * 900
        + b"}}}",
    ),
    "surrogate": lambda: plus(b'"x":"\\ud800"'),
    "utf-16-padded": lambda: _padded(16_000_000).decode().encode("utf-16"),
    "cp1252-30MB": lambda: plus(b'"x":"%b"' % (b"\xe9" * 30_000_000)),
    "nulls-30MB": lambda: b"\0" * 30_000_000,
    "random-30MB": lambda: random.Random(1).randbytes(30_000_000),
    "not-json-30MB": lambda: plus(b'"x":"%b" oops' % (b"s" * 30_000_000)),
    "yaml-scalar-quoted": lambda: YAML + b'x: "' + b"\\U0001F600" * 3_000_000 + b'"',
    "yaml-lines-3e6": lambda: YAML + b"x:\n" + b"- a\n" * 3_000_000,
    "yaml-deep-flow": lambda: YAML + b"x: " + b"[" * 150_000 + b"]" * 150_000,
    "yaml-deep-block": lambda: YAML + b"".join(b" " * n + b"a:\n" for n in range(7_000)),
    "yaml-aliases": _yaml_aliases,
    "yaml-merges": _yaml_merges,
    "yaml-self-alias": lambda: YAML + b"x: &x [*x]\n",
    "yaml-tags": lambda: YAML + b"x: !!python/object/apply:os.system ['true']\n",
    "yaml-documents": lambda: b"---\na: 1\n" * 190_000,
    "gzip-bomb": lambda: gzip.compress(b" " * 1_000_000_000, 6),
    "br": lambda: b"\x0b\x02\x80",
    "endless": lambda: HEAD + b',"x":"',
    "drip": lambda: HEAD + b',"x":"',
    "silent": lambda: b"",
    "refs-loop": multiplied.loop,
    "refs-chain": lambda: multiplied.chain(100_000),
    "refs-path-items": lambda: multiplied.chain_of_paths(100_000),
    "refs-exponential-allOf": multiplied.exponential,
    "refs-crossed-wide": lambda: multiplied.crossed(1_600, 1_600),
    "refs-crossed-words": lambda: multiplied.crossed(3_000, 2_000, words=5_000),
    "refs-discriminator": multiplied.discriminator,
    "microsoft": multiplied.microsoft,
    "operations-50k": lambda: multiplied.operations(50_000),
    "operations-9000x900": lambda: multiplied.busy_operations(9_000, 900),
    "parameters-100k": lambda: multiplied.parameters(100_000),
    "long-description": lambda: multiplied.long("description"),
    "long-path": lambda: multiplied.long("path"),
    "long-property": lambda: multiplied.long("property"),
    "enum-most": lambda: multiplied.enum(MAX_ITEMS - 10),
    "patterns-redos": lambda: multiplied.patterns(2_000, "^(a+)+(b|b)*%d$"),
    "servers": multiplied.servers,
    "security": multiplied.security,
}
# How some of them are sent: packed, or in a manner of their own.
PACKED = {"gzip-bomb": "gzip", "br": "br"}
MANNERS = ("endless", "drip", "silent")
