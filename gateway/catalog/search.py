"""Find the right tool by words: a small inverted index, ranked by BM25F.

A tool is described by fields of unequal worth: its name and title say what it does, its path what
it does it to, its description everything else. Each posting carries one number, computed at build:
how much this word says about this tool. A question adds those numbers up, word by word, each word
standing for its relatives too, at a discount. Three things then tip the scale: whether the tool's
server is for what is asked, what the tool does ("delete" wants DELETE, or `delete_…`), and how many
of its server's tools stand before it. How words are cut, which ones are related, and what people
say for what definitions say, is in `english.toml`.

Not SQLite's FTS5: it can't weigh the words of a question, so every synonym costs as many right
answers as it wins. Not word vectors and not WordNet: over 2,900 tools of 60 servers, GloVe's and
others' vectors found no tool more than the lexicon, and WordNet's synonyms found fewer.
"""

from __future__ import annotations

import heapq
import math
import re
import tomllib
import unicodedata
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from string import punctuation

from gateway.limits import MAX_QUOTE_CHARS, MAX_REMEMBERED, SEARCH_COMPLETIONS, SEARCH_ENTRIES
from gateway.model import Tool

ENGLISH = tomllib.loads((Path(__file__).parent / "english.toml").read_text(encoding="utf-8"))
_SPLIT_CASE = re.compile(  # inside `sendEmail` and `HTTPServer`, not in `URLs`
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])"
)
_LETTERS = re.compile(r"[^\W_]+")
_BLANKS = str.maketrans(dict.fromkeys(punctuation, " "))  # no word contains one
_IRREGULAR: Mapping[str, str] = ENGLISH["irregular"]
_WHOLE, _WEAK, _UNDO, _STOP = (
    frozenset(ENGLISH[kind].split()) for kind in ("whole", "weak", "undo", "stop")
)
_NOT_PLURAL = tuple(ENGLISH["not_plural"].split())
_NOT_DECOMPOSED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ß": "ss"}
)
_PHRASES = [  # a star is where up to four words may stand: "turn the lights off"
    (re.compile(f" {phrase.replace(' * ', ' ((?:[^ ]+ ){1,4}?)')} "), f" {wording} \\1 ")
    if "*" in phrase
    else (re.compile(f" {phrase} "), f" {wording} ")
    for phrase, wording in ENGLISH["phrases"].items()
]


def split_words(text: str) -> list[str]:
    """The words of some text or identifier, folded, in the singular, stop words left out."""
    return list(chain.from_iterable(map(_run_words, text.translate(_BLANKS).split())))


@lru_cache(maxsize=MAX_REMEMBERED)  # definitions say the same again and again
def _run_words(run: str) -> list[str]:
    return [word for word in map(singular, _lower_words(run)) if word not in _STOP]


def question_words(question: str) -> list[str]:
    """The words of a question, common phrases replaced by what definitions say instead."""
    padded = f" {' '.join(_lower_words(question))} "
    for pattern, wording in _PHRASES:
        padded = pattern.sub(wording, padded)
    return padded.split()


def _lower_words(text: str) -> list[str]:
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text).translate(_NOT_DECOMPOSED)
        text = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return _LETTERS.findall(_SPLIT_CASE.sub(" ", text).lower())


@lru_cache(maxsize=MAX_REMEMBERED)
def singular(word: str) -> str:
    """`repositories` → `repository`, `statuses` → `status`, `people` → `person`."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 4 or word[-1] != "s" or word.endswith(_NOT_PLURAL):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes", "uses")):
        return word[:-2] if not word.endswith(("auses", "cuses")) else word[:-1]
    return word[:-1]


@lru_cache(maxsize=MAX_REMEMBERED)
def stem(word: str) -> str:
    """The stem that `invite`, `inviting` and `invitation` share: to compare, not to read."""
    base = _without_ending(singular(word))
    base = _IRREGULAR.get(base, base)
    if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "aeiousl":
        base = base[:-1]  # running → runn → run
    if base.endswith("e") and len(base) > 3 or base.endswith("y") and len(base) > 5:
        base = base[:-1]
    return base


def _without_ending(word: str) -> str:
    if word in _WHOLE:
        return word
    for ending, stand_in, least in ENGLISH["endings"]:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return f"{word.removesuffix(ending)}{stand_in}"
    return word


def _thesaurus() -> Mapping[str, tuple[str, ...]]:
    near: defaultdict[str, set[str]] = defaultdict(set)
    for group in ENGLISH["groups"]:
        for member in group.split():
            near[stem(member)].update(group.split())
    return {key: tuple(sorted(words)) for key, words in near.items()}  # the same on every start


_SYNONYMS = _thesaurus()
_MEANINGS: Mapping[str, tuple[str, ...]] = {
    stem(word): tuple(meanings.split()) for word, meanings in ENGLISH["means"].items()
}


FIELDS: Mapping[str, tuple[float, float]] = {
    # field: weight, how much its length counts against it
    "name": (3.0, 0.3),
    "title": (3.0, 0.3),
    "object": (2.0, 0.0),  # the last fixed part of the path
    "lead": (1.5, 0.3),  # the description's first sentence
    "path": (0.8, 0.3),
    "text": (0.5, 0.6),  # the rest of the description
    "keywords": (0.4, 0.7),  # parameters and tags
    "connection": (1.0, 0.0),
}

_MARKUP = re.compile(r"<[^<>]*>|\]\([^()]*\)|https?://\S+")
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)`])[.:!?](?=\s|$)|</p>|\n\n")
_VARIABLE = re.compile(r"\{[^{}]*\}")
_SEPARATOR = " —"  # between summary and description


def fields_of(tool: Tool, split: Callable[[str], Sequence[str]]) -> dict[str, Sequence[str]]:
    """The words of each field."""
    display, text = _split_display_name(tool.description)
    summary = text.removeprefix(tool.title).lstrip(_SEPARATOR)
    lead, *rest = _SENTENCE_END.split(summary, maxsplit=1)
    texts = {
        "name": tool.local_name,
        "title": tool.title,
        "object": _object(tool.path),
        "lead": _MARKUP.sub(" ", lead),
        "path": tool.path,
        "text": _MARKUP.sub(" ", "".join(rest)),
        "keywords": tool.keywords,
        "connection": f"{tool.connection} {display}",
    }
    return {field: split(text) for field, text in texts.items()}


def _split_display_name(description: str) -> tuple[str, str]:
    """`[Display name] text` → display name, text."""
    if description.startswith("["):
        display, closed, text = description[1:].partition("] ")
        if closed:
            return display, text
    return "", description


def _object(path: str) -> str:
    """`/charges/{charge}/refunds/{id}` → `refunds`: in most APIs that is what a call acts on."""
    fixed = [part for part in _VARIABLE.sub("", path).split("/") if part]
    return fixed[-1] if fixed else ""


# What the first four groups of the thesaurus mean, with verbs that are no synonyms of the others.
_ACTIONS = {
    "read": "who check count download export find search query lookup",
    "create": "invite send upload",
    "update": "enable disable",
    "delete": "",
}
_VERBS: Mapping[str, str] = {
    stem(verb): action
    for (action, extra_verbs), group in zip(_ACTIONS.items(), ENGLISH["groups"], strict=False)
    for verb in f"{group} {extra_verbs}".split()
}
_QUESTION = frozenset("what which who whose where when why".split())
_DETERMINERS = frozenset("a an the my our your this that these those all every each".split())
# How well each method fits an action; an action that is not listed clashes with the method.
_METHODS: Mapping[str, Mapping[str, float]] = {
    "GET": {"read": 1.15},
    "HEAD": {"read": 1.15},
    "POST": {"create": 1.15, "update": 1.1, "do": 1.15},
    "PUT": {"create": 1.1, "update": 1.15, "do": 1.15},
    "PATCH": {"update": 1.15, "do": 1.15},
    "DELETE": {"delete": 1.15, "do": 1.15},
}
_VERB_METHODS = {"read": "GET", "create": "POST", "update": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Intent:
    """The action wanted: read, create, update, delete, do, or "" if unknown; on many or on one."""

    action: str
    many: bool

    def fit(self, method: str, many: bool) -> float:
        """A factor for tools of this method, whose paths name a collection or not."""
        if method not in _METHODS:
            return 1.0
        if not self.action:
            return 0.9 if method == "DELETE" else 1.0
        fit = _METHODS[method].get(self.action, 0.6 if method == "DELETE" else 0.75)
        return fit * 1.1 if self.action == "read" and self.many == many else fit


def kind_of(tool: Tool) -> tuple[str, bool]:
    """The method that tells best what a tool does, and whether it does it to a collection.

    A tool of an MCP server has neither method nor path: the first verb of its name stands for one.
    """
    if tool.method:
        return tool.method.upper(), not tool.path.rstrip("/').").endswith("}")
    words = split_words(tool.local_name)
    actions = (_VERBS[stem(word)] for word in words if stem(word) in _VERBS)
    return _VERB_METHODS.get(next(actions, ""), ""), "list" in words


def intent_of(words: Sequence[str]) -> Intent:
    """The action that the words of a question ask for.

    The first verb decides; a question word, or an unknown verb before an article, says at least
    whether something is to be read or done. The fit only tips the scale between tools whose words
    say the same, so a wrong guess costs little.
    """
    many = "list" in words or "all" in words
    many = many or any(singular(word) != word for word in words if word not in _STOP)
    return Intent(_action(words), many)


def _action(words: Sequence[str]) -> str:
    for word, next_word in pairwise((*words, "")):
        if word in _QUESTION:
            return "read"
        if word in _STOP:
            continue
        if action := _VERBS.get(stem(word)):
            return action
        if next_word in _DETERMINERS:
            return "do"  # an imperative: "merge the …"
    return ""


@dataclass(frozen=True, slots=True)
class _Postings:
    """The tools a word occurs in, and how much it says about each."""

    places: array[int]
    worths: array[float]


class ToolIndex:
    """Tools to be found by words. Never changes once built, so any thread may search it.

    Building takes about 0.06 ms a tool: run it off the event loop. A search takes 3 ms over 3,000
    tools and about 10 ms over 10,000, however many are allowed.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        indexed = sorted(tools, key=lambda tool: tool.name)  # equal scores: in order of name
        self._names = [tool.name for tool in indexed]
        self._by_spelling: dict[str, list[int]] = defaultdict(list)
        for place, tool in enumerate(indexed):
            for spelling in {tool.name, tool.local_name, tool.operation or tool.name}:
                self._by_spelling[spelling].append(place)
        self._kinds = [kind_of(tool) for tool in indexed]
        self._servers = [tool.connection for tool in indexed]
        self._sizes = Counter(self._servers)
        split = cache(split_words)  # the tools of a server say much the same
        self._postings = _postings([fields_of(tool, split) for tool in indexed])
        self._vocabulary = sorted(self._postings)
        self._by_stem: dict[str, list[str]] = defaultdict(list)
        for word in self._vocabulary:
            self._by_stem[stem(word)].append(word)

    def search(self, query: str, *, allowed: Collection[str], limit: int) -> list[str]:
        """Names of the allowed tools that answer the query, best first, at most `limit`."""
        permitted = allowed if isinstance(allowed, (Set, Mapping)) else frozenset(allowed)
        words = question_words(query[:MAX_QUOTE_CHARS])
        intent = intent_of(words)
        fits = {kind: intent.fit(*kind) for kind in set(self._kinds)}
        names, kinds = self._names, self._kinds
        scores = {
            place: score * fits[kinds[place]]
            for place, score in enumerate(self._scores(words))
            if score and names[place] in permitted
        }
        ranks = self._ranks(scores)
        for place in self._by_spelling.get(query.strip(), ()):
            if names[place] in permitted:
                ranks[place] = -math.inf  # a query that is a tool's own name finds it
        return [names[place] for place in heapq.nsmallest(limit, ranks, key=ranks.__getitem__)]

    def _ranks(self, scores: Mapping[int, float]) -> dict[int, float]:
        """Ranks, the least first. Each further tool of one server has to be a little better: many
        tools for the same thing leave room for another server's."""
        tools_before: Counter[str] = Counter()
        ranks = {}
        for place in sorted(scores, key=scores.__getitem__, reverse=True):
            server = self._servers[place]
            ranks[place] = -scores[place] * 0.9 ** min(tools_before[server], SEARCH_ENTRIES)
            tools_before[server] += 1
        return ranks

    def _scores(self, words: Sequence[str]) -> list[float]:
        """Each tool's score: how much the question's words say about it, how many of the words do,
        and how many tools of its server they say something about: a server has a purpose."""
        coverage = 0.7  # how much of a score is lost when no word of the question is covered
        enough = 0.3  # worth at which a word counts as covered
        purpose = 4.0  # how much it counts when all of a server's tools have the question's words
        concepts = [self._best(variants, weight) for variants, weight in self._concepts(words)]
        total = sum(rarity for _, rarity in concepts)
        sums = [0.0] * len(self._names)
        covers = [1 - coverage] * len(self._names)
        fits: defaultdict[str, float] = defaultdict(lambda: 1.0)
        for best, rarity in concepts:
            share = rarity / total
            for place, worth in best.items():
                part = share if worth > enough else share * worth / enough
                sums[place] += share * worth
                covers[place] += coverage * part
                server = self._servers[place]
                fits[server] += purpose * part / (self._sizes[server] + 1)
        purposes = [fits[server] for server in self._servers]
        return [s * c * p for s, c, p in zip(sums, covers, purposes, strict=True)]

    def _best(self, variants: Mapping[str, float], weight: float) -> tuple[dict[int, float], float]:
        """The score of each tool by a concept's best word, and the concept's weight."""
        postings = [(self._postings[word], part) for word, part in variants.items()]
        postings.sort(key=lambda entry: len(entry[0].places), reverse=True)
        (longest, part), *rest = postings  # half the work, and `dict` does it fastest
        best = dict(zip(longest.places, [part * worth for worth in longest.worths], strict=True))
        for shorter, part in rest:
            for place, worth in zip(shorter.places, shorter.worths, strict=True):
                if part * worth > best.get(place, 0.0):
                    best[place] = part * worth
        frequency = sum(part * len(posting.places) for posting, part in postings)
        # By less than its rarity: names and places are rare, and are a call's arguments.
        return best, weight * _rarity(frequency, len(self._names)) ** 0.6

    def _concepts(self, words: Sequence[str]) -> Iterator[tuple[Mapping[str, float], float]]:
        """For each word the indexed words that may stand for it, discounted, and its weight."""
        seen_stems: set[str] = set()
        undo = any(stem(word) in _UNDO for word in words)
        for position, raw in enumerate(words):
            word = singular(raw)
            if raw in _STOP or word in _STOP or stem(word) in seen_stems:
                continue
            seen_stems.add(stem(word))
            next_word = words[position + 1] if position + 1 < len(words) else None
            variants = dict(self._variants(raw, word, next_word, undo))
            if not variants and next_word is None:  # the last word may not be finished yet
                variants = dict.fromkeys(self._completions(raw), 0.6)
            if variants:
                yield variants, 0.4 if word in _WEAK else 1.0

    def _variants(
        self, raw: str, word: str, next_word: str | None, undo: bool
    ) -> Iterator[tuple[str, float]]:
        """Indexed words for a word of the question. A word's last discount holds."""
        for meaning in _MEANINGS.get(stem(word), ()):
            yield from ((same, 0.55) for same in self._by_stem.get(stem(meaning), ()))
        for synonym in _SYNONYMS.get(stem(word), ()):
            yield from ((same, 0.4) for same in self._by_stem.get(stem(synonym), ()))
        yield from ((same, 0.85) for same in self._by_stem.get(stem(word), ()))
        joined = singular(raw + (next_word or ""))
        yield from ((same, 1.0) for same in (joined, word) if same in self._postings)
        if undo:  # "stop following": `unfollow` is righter than `follow`
            yield from ((same, 1.5) for same in self._by_stem.get(f"un{stem(word)}", ()))

    def _completions(self, start: str) -> list[str]:
        if len(start) < 3:
            return []
        first = bisect_left(self._vocabulary, start)
        nearby = self._vocabulary[first : first + SEARCH_COMPLETIONS]
        return [word for word in nearby if word.startswith(start)]


def _postings(documents: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, _Postings]:
    frequency = Counter(chain.from_iterable(set().union(*doc.values()) for doc in documents))
    rarities = {word: _rarity(count, len(documents)) for word, count in frequency.items()}
    postings = {word: _Postings(array("l"), array("f")) for word in rarities}
    lengths = _mean_lengths(documents)
    for place, document in enumerate(documents):
        for word, worth in _worths(document, lengths, rarities):
            postings[word].places.append(place)
            postings[word].worths.append(worth)
    return postings


def _mean_lengths(documents: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, float]:
    count = max(1, len(documents))
    sums = {field: sum(len(document[field]) for document in documents) for field in FIELDS}
    return {field: max(1.0, total / count) for field, total in sums.items()}


def _worths(
    document: Mapping[str, Sequence[str]],
    mean_lengths: Mapping[str, float],
    rarities: Mapping[str, float],
) -> Iterator[tuple[str, float]]:
    """BM25F's saturated weight of each word, plus its share in what the tool is called.

    The share is the word's part of a unit vector over name and title: the fewer other words there
    are, the more a tool is about this word.
    """
    weights: dict[str, float] = defaultdict(float)
    for field, (weight, by_length) in FIELDS.items():
        words = document[field]
        share = weight / (1 - by_length + by_length * len(words) / mean_lengths[field])
        for word in words:
            weights[word] += share
    named_rarities = {word: rarities[word] for word in (*document["name"], *document["title"])}
    norm = math.sqrt(sum(rarity * rarity for rarity in named_rarities.values())) or 1.0
    for word, weight in weights.items():
        yield word, weight / (1.5 + weight) + named_rarities.get(word, 0.0) / norm


def _rarity(frequency: float, total: int) -> float:
    """BM25's inverse document frequency, never negative."""
    return math.log(1 + (max(0.0, total - frequency) + 0.5) / (frequency + 0.5))
