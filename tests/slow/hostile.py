"""Definitions that mean harm, by name: large, deep, multiplied, wrongly encoded, never ending.

Each is made when it is asked for. What a peer has to do about sending it (packing, dripping, never
ending) is said beside the bytes, so that the whole family can be put through a running gateway.
"""

from __future__ import annotations

import codecs
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


def _yaml_merge_lists() -> bytes:
    base = "b: &b\n" + "".join(f"  k{n}: 1\n" for n in range(1_000))
    many = ", ".join(["*b"] * 1_000)
    return (
        YAML
        + (base + f"l: &l [{many}]\n" + "".join(f"m{n}: {{<<: *l}}\n" for n in range(100))).encode()
    )


def _mixed(last: bytes = b"z") -> bytes:
    """As many containers, items and texts as may be: what no real definition has at once."""
    count = MAX_CONTAINERS // 2 - 1_000
    text = b'{"a":[1],"b":"%b"}' % (b"z" * (MAX // count - 50) + last)
    return plus(
        b'"components":{"schemas":{%b}}'
        % b",".join(b'"s%06d":%b' % (n, text) for n in range(count))
    )


FAMILY: dict[str, Hostile] = {
    "just-below": Hostile(lambda: _padded(MAX - 10)),
    "half": Hostile(lambda: _padded(16 * 1024 * 1024)),
    "just-above": Hostile(lambda: _padded(MAX + 1_000)),
    "string-30MB": Hostile(lambda: plus(b'"x":"%b"' % (b"s" * 30_000_000))),
    "string-30MB-emoji": Hostile(lambda: plus(b'"x":"%b"' % (b"s" * 30_000_000 + "😀".encode()))),
    "string-30MB-all-emoji": Hostile(lambda: plus(b'"x":"%b"' % ("😀".encode() * 7_500_000))),
    "string-30MB-latin": Hostile(lambda: plus(b'"x":"%b"' % ("é".encode() * 15_000_000))),
    "string-30MB-escapes": Hostile(lambda: plus(b'"x":"%b"' % (b"\\ud83d\\ude00" * 2_500_000))),
    "strings-900KB-emoji": Hostile(
        lambda: plus(b'"x":[%b]' % b",".join([b'"%b"' % (b"s" * 900_000 + "😀".encode())] * 33))
    ),
    "strings-60KB-emoji": Hostile(
        lambda: plus(b'"x":[%b]' % b",".join([b'"%b"' % (b"s" * 60_000 + "😀".encode())] * 500))
    ),
    "strings-1KB-emoji": Hostile(
        lambda: plus(b'"x":[%b]' % b",".join([b'"%b"' % (b"s" * 1_000 + "😀".encode())] * 30_000))
    ),
    "key-30MB": Hostile(lambda: plus(b'"%b":1' % (b"k" * 30_000_000))),
    "description-30MB": Hostile(
        lambda: plus(b'"x":1').replace(
            b'"responses":{}', b'"description":"%b"' % (b"word " * 6_000_000)
        )
    ),
    "spaces-30MB": Hostile(lambda: plus(b'"x":1' + b" " * 30_000_000)),
    "digits-30MB": Hostile(lambda: plus(b'"x":%b' % (b"9" * 30_000_000))),
    "digits-1e6": Hostile(lambda: plus(b'"x":%b' % (b"9" * 1_000_000))),
    "exponent": Hostile(lambda: plus(b'"x":1e999999')),
    "nan": Hostile(lambda: plus(b'"x":NaN')),
    "keys-1e6": Hostile(
        lambda: plus(b'"x":{%b}' % b",".join(b'"k%d":1' % n for n in range(1_000_000)))
    ),
    "keys-most": Hostile(
        lambda: plus(b'"x":{%b}' % b",".join(b'"k%d":1' % n for n in range(MAX_ITEMS - 10)))
    ),
    "keys-most-long": Hostile(
        lambda: plus(b'"x":{%b}' % b",".join(b'"k%070d":""' % n for n in range(MAX_ITEMS - 10)))
    ),
    "keys-twice": Hostile(lambda: plus(b'"x":{%b}' % b",".join([b'"k":1'] * (MAX_ITEMS - 10)))),
    "mixed": Hostile(_mixed),
    "mixed-emoji": Hostile(lambda: _mixed("😀".encode())),
    "deep-lists": Hostile(lambda: plus(b'"x":' + b"[" * 150_000 + b"]" * 150_000)),
    "deep-objects": Hostile(lambda: plus(b'"x":' + b'{"a":' * 150_000 + b"1" + b"}" * 150_000)),
    "deep-1000": Hostile(lambda: plus(b'"x":' + b'{"a":' * 1_000 + b"1" + b"}" * 1_000)),
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
    "surrogate-30MB": Hostile(lambda: plus(b'"x":"%b"' % (b"\\ud800" * 5_000_000))),
    "bom": Hostile(lambda: codecs.BOM_UTF8 + plus(b'"x":1')),
    "utf-16-32MB": Hostile(
        lambda: plus(b'"x":"%b"' % (b"s" * 15_000_000)).decode().encode("utf-16")
    ),
    "utf-16-padded": Hostile(lambda: _padded(16_000_000).decode().encode("utf-16")),
    "utf-32-32MB": Hostile(
        lambda: plus(b'"x":"%b"' % (b"s" * 8_000_000)).decode().encode("utf-32")
    ),
    "cp1252-30MB": Hostile(lambda: plus(b'"x":"%b"' % (b"\xe9" * 30_000_000))),
    "cp1252-euro": Hostile(lambda: plus(b'"x":"%b"' % (b"\xe9\x80" * 15_000_000))),
    "nulls-30MB": Hostile(lambda: b"\0" * 30_000_000),
    "random-30MB": Hostile(lambda: random.Random(1).randbytes(30_000_000)),
    "html-30MB": Hostile(lambda: b"<html>" + b"<p>text</p>\n" * 2_500_000),
    "not-json-30MB": Hostile(lambda: plus(b'"x":"%b" oops' % (b"s" * 30_000_000))),
    "yaml-scalar-plain": Hostile(lambda: YAML + b"x: " + b"word " * 6_000_000),
    "yaml-scalar-quoted": Hostile(lambda: YAML + b'x: "' + b"\\U0001F600" * 3_000_000 + b'"'),
    "yaml-scalar-block": Hostile(
        lambda: (
            YAML
            + b"x: |\n"
            + b"  word word word word word word word word word word word word word word\n" * 150_000
        )
    ),
    "yaml-key": Hostile(lambda: YAML + b"? " + b"k" * 30_000_000 + b"\n: 1"),
    "yaml-comment": Hostile(lambda: YAML + b"# " + b"c" * 30_000_000),
    "yaml-lines": Hostile(lambda: YAML + b"".join(b"k%d: v\n" % n for n in range(240_000))),
    "yaml-lines-long": Hostile(
        lambda: YAML + b"".join(b"k%d: %b\n" % (n, b"v" * 30) for n in range(199_000))
    ),
    "yaml-lines-3e6": Hostile(lambda: YAML + b"x:\n" + b"- a\n" * 3_000_000),
    "yaml-flow": Hostile(lambda: YAML + b"x: [" + b"a, " * (MAX_ITEMS - 10) + b"a]"),
    "yaml-deep-flow": Hostile(lambda: YAML + b"x: " + b"[" * 150_000 + b"]" * 150_000),
    "yaml-deep-block": Hostile(lambda: YAML + b"".join(b" " * n + b"a:\n" for n in range(7_000))),
    "yaml-dashes": Hostile(lambda: YAML + b"x:\n" + b"- " * 15_000_000),
    "yaml-colons": Hostile(lambda: YAML + b"x:\n" + b"? " * 15_000_000),
    "yaml-aliases": Hostile(_yaml_aliases),
    "yaml-merges": Hostile(_yaml_merges),
    "yaml-merge-lists": Hostile(_yaml_merge_lists),
    "yaml-anchors": Hostile(
        lambda: YAML + b"".join(b"k%d: &a%d v\n" % (n, n) for n in range(199_000))
    ),
    "yaml-self-alias": Hostile(lambda: YAML + b"x: &x [*x]\n"),
    "yaml-tags": Hostile(lambda: YAML + b"x: !!python/object/apply:os.system ['true']\n"),
    "yaml-binary": Hostile(lambda: YAML + b"x: !!binary " + b"QUFB" * 7_000_000),
    "yaml-documents": Hostile(lambda: b"---\na: 1\n" * 190_000),
    "yaml-integer": Hostile(lambda: YAML + b"x: " + b"9" * 1_000_000),
    "yaml-utf-16": Hostile(lambda: (YAML + b"x: " + b"w " * 7_000_000).decode().encode("utf-16")),
    "yaml-tabs": Hostile(lambda: YAML + b"x:\n" + b"\t\t\t\ta: 1\n" * 199_000),
    "gzip-bomb": Hostile(lambda: gzip.compress(b" " * 1_000_000_000, 6), "gzip"),
    "gzip-30MB": Hostile(lambda: gzip.compress(plus(b'"x":"%b"' % (b"s" * 30_000_000))), "gzip"),
    "br": Hostile(lambda: b"\x0b\x02\x80", "br"),
    "zstd": Hostile(lambda: b"\x28\xb5\x2f\xfd", "zstd"),
    "endless": Hostile(lambda: HEAD + b',"x":"', manner="endless"),
    "drip": Hostile(lambda: HEAD + b',"x":"', manner="drip"),
    "silent": Hostile(lambda: b"", manner="silent"),
    "refs-loop": Hostile(multiplied.loop),
    "refs-chain": Hostile(lambda: multiplied.chain(100_000)),
    "refs-path-items": Hostile(lambda: multiplied.chain(100_000, "pathItems")),
    "refs-parameters": Hostile(lambda: multiplied.chain(79_000, "parameters")),
    "refs-exponential-allOf": Hostile(lambda: multiplied.exponential("allOf")),
    "refs-exponential-oneOf": Hostile(lambda: multiplied.exponential("oneOf")),
    "refs-crossed-wide": Hostile(lambda: multiplied.crossed(1_600, 1_600)),
    "refs-crossed-many": Hostile(lambda: multiplied.crossed(12_000, 4_000)),
    "refs-crossed-few": Hostile(lambda: multiplied.crossed(200, 4_000)),
    "refs-crossed-crowd": Hostile(lambda: multiplied.crossed(16, 2_000)),
    "refs-crossed-words": Hostile(lambda: multiplied.crossed(3_000, 2_000, words=5_000)),
    "refs-crossed-allOf": Hostile(lambda: multiplied.crossed(1_600, 1_600, keyword="allOf")),
    "refs-crossed-anyOf": Hostile(lambda: multiplied.crossed(12_000, 4_000, keyword="anyOf")),
    "refs-crossed-swagger": Hostile(multiplied.crossed_swagger),
    "refs-25MB-defs": Hostile(multiplied.large_defs),
    "refs-allOf-deep": Hostile(multiplied.allof_deep),
    "refs-discriminator": Hostile(multiplied.discriminator),
    "refs-dynamic": Hostile(multiplied.dynamic),
    "microsoft": Hostile(multiplied.microsoft),
    "operations-50k": Hostile(lambda: multiplied.operations(50_000)),
    "operations-9900": Hostile(lambda: multiplied.operations(9_900)),
    "operations-disguised": Hostile(lambda: multiplied.disguised_operations(50_000)),
    "operations-9000x25": Hostile(lambda: multiplied.busy_operations(9_000, 25)),
    "operations-9000x900": Hostile(lambda: multiplied.busy_operations(9_000, 900)),
    "parameters-100k": Hostile(lambda: multiplied.parameters(100_000)),
    "long-operationId": Hostile(lambda: multiplied.long("operationId")),
    "long-description": Hostile(lambda: multiplied.long("description")),
    "long-path": Hostile(lambda: multiplied.long("path")),
    "long-tags": Hostile(lambda: multiplied.long("tags")),
    "long-parameter": Hostile(lambda: multiplied.long("parameter")),
    "long-default": Hostile(lambda: multiplied.long("default")),
    "long-property": Hostile(lambda: multiplied.long("property")),
    "long-ref": Hostile(lambda: multiplied.long("ref")),
    "long-media": Hostile(lambda: multiplied.long("media")),
    "enum-1e6": Hostile(lambda: multiplied.enum(1_000_000)),
    "enum-most": Hostile(lambda: multiplied.enum(MAX_ITEMS - 10)),
    "patterns": Hostile(lambda: multiplied.patterns(20_000, "(a{1,900}){1,900}%d")),
    "patterns-classes": Hostile(lambda: multiplied.patterns(20_000, r"(\w{50}\p{L}){40}%d")),
    "patterns-redos": Hostile(lambda: multiplied.patterns(2_000, "^(a+)+(b|b)*%d$")),
    "servers": Hostile(multiplied.servers),
    "security": Hostile(multiplied.security),
}
