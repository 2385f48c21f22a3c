"""The words of names, paths and questions, brought to a common form: the language side of search.

Identifiers fall into words at underscores, dashes, slashes and changes of case; accents and case
are folded; plurals become singular. What is left of a word without its ending (`stem`)
ties `inviting` to `invitation`; the thesaurus ties what people say to what APIs call it. It holds
everyday English only, no product's vocabulary: a rule that helps one question alone has no place
here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from gateway.limits import MAX_REMEMBERED

MAX_WORD = 40
_SPLIT_CASE = re.compile(  # inside `sendEmail` and `HTTPServer`, not in `URLs`
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])"
)
_LETTERS = re.compile(r"[^\W_]+")

STOP = frozenset(
    """a an and any are as at be been but by can could do does did each for from had has have how i
    if in into is it its let may might must need of off on or our please shall should so some
    something than that the their them then there these they this those to via
    want was we were will with would you your us also just like about which what where when why
    s t m re ve ll d am using use used given specific existing certain able thing way id
    whole entire later anything give gave tell""".split()
)

# Words that say little about what is asked for, though few tools have them.
WEAK = frozenset("my me mine own current all every everything new now today".split())

UNDO = frozenset(("undo", "stop", "remov", "delet", "cancel", "revert"))  # stems

# What people say → what definitions call it, before a question falls into words.
_PHRASES: tuple[tuple[str, str], ...] = (
    ("get rid of", "delete"),
    ("take away", "remove"),
    ("look up", "search"),
    ("how many", "count"),
    ("turn on", "enable"),
    ("turn off", "disable"),
    ("switch on", "enable"),
    ("switch off", "disable"),
    ("set up", "create"),
    ("fill in", "fill"),
    ("sign up", "register"),
    ("log in", "login"),
    ("logged in", "authenticated"),
    ("sign in", "login"),
    ("who am i", "current authenticated user"),
    ("out of office", "automatic reply"),
    ("address book", "contact"),
    ("pay out", "payout"),
    ("pull requests", "pull request"),
    ("prs", "pull request"),
    ("pr", "pull request"),
)

# Words that may stand for each other. The first four are also what a method does.
READ = "list get show fetch find search read retrieve view see display lookup query browse return"
CREATE = "create add new post make insert register open start generate compose"
UPDATE = "update edit change modify patch set put replace rename adjust alter toggle"
DELETE = "delete remove drop destroy erase clear discard"

_GROUPS = (
    READ,
    CREATE,
    UPDATE,
    DELETE,
    "delete cancel revoke terminate unsubscribe",
    "send email mail message deliver notify",
    "email mail inbox mailbox",
    "message chat",
    "user people person who member account profile everyone everybody somebody someone anyone "
    "colleague",
    "member collaborator participant assignee everyone everybody somebody someone anyone "
    "colleague contributor",
    "invite add",
    "team group",
    "customer client buyer",
    "repository repo",
    "organization organisation org company",
    "picture image photo avatar",
    "meeting event appointment calendar",
    "schedule calendar",
    "file document doc content",
    "folder directory",
    "bug issue ticket task",
    "task todo card",
    "comment remark note reply",
    "reply answer respond response",
    "accept approve confirm",
    "approve review",
    "decline reject refuse deny",
    "money fund payment pay payout",
    "charge payment",
    "price cost fee",
    "refund reimburse",
    "bill invoice",
    "discount coupon promotion promo",
    "subscription plan",
    "buy purchase order book",
    "book reserve booking reservation",
    "my me current authenticated own",
    "all every everything",
    "download export",
    "upload import attach",
    "run execute trigger invoke start launch dispatch",
    "rerun retry redeliver resend",
    "stop halt cancel abort",
    "pause suspend",
    "enable activate toggle",
    "disable deactivate toggle",
    "history log audit revision version",
    "status state health",
    "permission access right role",
    "setting configuration config preference option",
    "secret credential password token",
    "label tag topic",
    "count number total amount",
    "statistic stat metric analytics usage",
    "link url",
    "share invite",
    "copy duplicate clone",
    "move transfer",
    "scale resize replica",
    "close archive finish complete resolve end",
    "branch ref reference",
    "latest last recent newest",
    "next upcoming",
    "candidate applicant",
    "job position vacancy opening",
    "follow watch subscribe",
    "conversation thread channel",
    "spreadsheet worksheet sheet",
    "row record entry item",
    "project board plan",
    "preview draft",
    "hook webhook callback",
)

_IRREGULAR = {
    "people": "person",
    "subscript": "subscrib",
    "descript": "describ",
    "sent": "send",
    "paid": "pay",
    "ran": "run",
    "children": "child",
    "indices": "index",
    "analyses": "analysis",
    "data": "data",
}
_PLURAL_LOOKS = ("ss", "us", "is", "ous", "news", "always", "https", "dns", "aws", "sms", "saas")
_WHOLE = frozenset(
    """string thing setting during king ring red need feed seed bed embed customer parameter
    register""".split()
)


def split_words(text: str) -> list[str]:
    """The words of some text or identifier, folded, in the singular, stop words included."""
    if not text.isascii():
        text = _folded(text)
    found = _LETTERS.findall(_SPLIT_CASE.sub(" ", text).lower())
    return [singular(word[:MAX_WORD]) for word in found]


def question_words(question: str) -> list[str]:
    """The words of a question, common phrases replaced by what definitions say instead."""
    text = " ".join(_LETTERS.findall(_SPLIT_CASE.sub(" ", _folded(question)).lower()))
    padded = f" {text} "
    for said, meant in _PHRASES:
        padded = padded.replace(f" {said} ", f" {meant} ")
    return [word[:MAX_WORD] for word in padded.split()]


@lru_cache(maxsize=MAX_REMEMBERED)
def singular(word: str) -> str:
    """`repositories` → `repository`, `statuses` → `status`, `people` → `person`."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 4 or word[-1] != "s" or word.endswith(_PLURAL_LOOKS):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes", "uses")):
        return word[:-2] if not word.endswith(("auses", "cuses")) else word[:-1]
    return word[:-1]


@lru_cache(maxsize=MAX_REMEMBERED)
def stem(word: str) -> str:
    """What `invite`, `inviting` and `invitation` share: good for comparing, not for reading."""
    base = _without_ending(singular(word))
    base = _IRREGULAR.get(base, base)
    if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "aeiousl":
        base = base[:-1]  # running → runn → run
    if base.endswith("e") and len(base) > 3 or base.endswith("y") and len(base) > 5:
        base = base[:-1]
    return base


_ENDINGS: tuple[tuple[str, str, int], ...] = (
    # ending, what stands in for it, letters that must be left
    ("ification", "if", 2),
    ("isation", "iz", 3),
    ("ization", "iz", 3),
    ("cellation", "cel", 3),
    ("ation", "", 4),
    ("ution", "ut", 3),
    ("ion", "", 4),
    ("ement", "", 4),
    ("ment", "", 5),
    ("ified", "if", 2),
    ("ied", "y", 2),
    ("celled", "cel", 3),
    ("celling", "cel", 3),
    ("ing", "", 3),
    ("ed", "", 3),
    ("al", "", 5),
    ("ee", "", 5),
    ("er", "", 6),
    ("or", "", 7),
)


def _without_ending(word: str) -> str:
    if word in _WHOLE:
        return word
    for ending, stand_in, least in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return word[: -len(ending)] + stand_in
    return word


_NOT_DECOMPOSED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ß": "ss"}
)


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).translate(_NOT_DECOMPOSED)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def _thesaurus() -> Mapping[str, tuple[str, ...]]:
    near: dict[str, set[str]] = {}
    for group in _GROUPS:
        members = group.split()
        for member in members:
            near.setdefault(stem(member), set()).update(members)
    return {key: tuple(sorted(words)) for key, words in near.items()}  # the same on every start


SYNONYMS = _thesaurus()
