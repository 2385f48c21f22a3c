"""Find the right tool by words: a small inverted index, ranked by BM25F.

A tool is described by fields of unequal worth: its name and title say what it does, its path what
it does it to, its description everything else. Each posting carries one number, computed at build:
how much this word says about this tool. A question adds those numbers up, word by word, each word
standing for its relatives too, at a discount; then the method is looked at ("delete" wants DELETE).

Not SQLite's FTS5: it can't weigh the words of a question, so every synonym costs as many right
answers as it wins. On the same fields and thesaurus it finds four answers where this finds five.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import mul

from gateway.catalog import words
from gateway.catalog.fields import FIELDS, fields_of
from gateway.catalog.intent import intent_of, kind_of
from gateway.model import Tool

MAX_QUESTION_CHARS = 400
MAX_QUESTION_WORDS = 24
MAX_COMPLETIONS = 12
MIN_COMPLETED = 3

_SATURATION = 1.5
_CORE = 1.0  # what being most of a name and title is worth, beside BM25F
_SAME_STEM = 0.85
_SYNONYM = 0.5
_COMPLETION = 0.6
_UNDONE = 1.5  # "stop following": `unfollow` is righter than `follow`
_WEAK = 0.4
_COVERAGE = 0.6  # how much of a score is lost when no word of the question is covered
_ENOUGH = 0.5  # worth at which a word counts as covered


@dataclass(frozen=True, slots=True)
class _Postings:
    """The tools a word occurs in, and how much it says about each."""

    places: array[int]
    worths: array[float]


@dataclass(frozen=True, slots=True)
class _Concept:
    """One word of a question: the indexed words that may stand for it, each with a discount."""

    variants: Mapping[str, float]
    weight: float


class ToolIndex:
    """Tools to be found by words. Never changes once built, so any thread may search it.

    Building takes about 0.15 ms a tool: run it off the event loop. A search takes 1 ms over 2,000
    tools and about 5 ms over 10,000, however many are allowed.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        indexed = sorted(tools, key=lambda tool: tool.name)  # equal scores: in order of name
        self._names = [tool.name for tool in indexed]
        self._spelled: dict[str, list[int]] = defaultdict(list)
        for place, tool in enumerate(indexed):
            for spelling in {tool.name, tool.local_name, tool.operation or tool.name}:
                self._spelled[spelling].append(place)
        self._kinds = [kind_of(tool) for tool in indexed]
        self._postings = _postings([fields_of(tool) for tool in indexed])
        self._vocabulary = sorted(self._postings)
        self._by_stem: dict[str, list[str]] = defaultdict(list)
        for word in self._vocabulary:
            self._by_stem[words.stem(word)].append(word)

    def search(self, query: str, *, allowed: Collection[str], limit: int) -> list[str]:
        """Names of the allowed tools that answer the query, best first, at most `limit`."""
        permitted = allowed if isinstance(allowed, (Set, Mapping)) else frozenset(allowed)
        asked = words.question_words(query[:MAX_QUESTION_CHARS])[:MAX_QUESTION_WORDS]
        fits = intent_of(asked).fits()
        names, kinds = self._names, self._kinds
        ranks = {
            place: -score * fits[kinds[place]]
            for place, score in enumerate(self._scores(asked))
            if score and names[place] in permitted
        }
        for place in self._spelled.get(query.strip(), ()):
            if names[place] in permitted:
                ranks[place] = -math.inf  # who gives the very name wants that one
        return [names[place] for place in heapq.nsmallest(limit, ranks, key=ranks.__getitem__)]

    def _scores(self, asked: Sequence[str]) -> list[float]:
        """For each tool what the question's words say about it, the more of them the better."""
        found = [self._best(concept) for concept in self._concepts(asked)]
        total = sum(rarity for _, rarity in found)
        said = [0.0] * len(self._names)
        covered = [1 - _COVERAGE] * len(self._names)
        for best, rarity in found:
            full = _COVERAGE * rarity / total
            for place, worth in best.items():
                said[place] += rarity * worth
                covered[place] += full if worth > _ENOUGH else full * worth / _ENOUGH
        return list(map(mul, said, covered))

    def _best(self, concept: _Concept) -> tuple[dict[int, float], float]:
        """What the best of the concept's words says about each tool; how rare the concept is."""
        postings = [(self._postings[word], part) for word, part in concept.variants.items()]
        postings.sort(key=lambda entry: len(entry[0].places), reverse=True)
        (longest, part), *others = postings  # half the work, and `dict` does it fastest
        best = dict(zip(longest.places, [part * worth for worth in longest.worths], strict=True))
        for shorter, part in others:
            for place, worth in zip(shorter.places, shorter.worths, strict=True):
                if part * worth > best.get(place, 0.0):
                    best[place] = part * worth
        frequency = sum(part * len(found.places) for found, part in postings)
        return best, concept.weight * _rarity(frequency, len(self._names))

    def _concepts(self, asked: Sequence[str]) -> Iterator[_Concept]:
        seen: set[str] = set()
        undo = any(words.stem(word) in words.UNDO for word in asked)
        for position, raw in enumerate(asked):
            word = words.singular(raw)
            if raw in words.STOP or word in words.STOP or words.stem(word) in seen:
                continue
            seen.add(words.stem(word))
            following = asked[position + 1] if position + 1 < len(asked) else None
            variants = dict(self._variants(raw, word, following, undo))
            if variants:
                yield _Concept(variants, _WEAK if word in words.WEAK else 1.0)

    def _variants(
        self, raw: str, word: str, following: str | None, undo: bool
    ) -> Iterator[tuple[str, float]]:
        """Indexed words for a word of the question. The last discount said of a word holds."""
        if following is None:
            yield from ((longer, _COMPLETION) for longer in self._completions(raw))
        for synonym in words.SYNONYMS.get(words.stem(word), ()):
            yield from ((same, _SYNONYM) for same in self._by_stem.get(words.stem(synonym), ()))
        yield from ((same, _SAME_STEM) for same in self._by_stem.get(words.stem(word), ()))
        joined = words.singular(raw + (following or ""))
        yield from ((same, 1.0) for same in (joined, word) if same in self._postings)
        if undo:
            opposite = f"un{words.stem(word)}"
            yield from ((same, _UNDONE) for same in self._by_stem.get(opposite, ()))

    def _completions(self, start: str) -> list[str]:
        if len(start) < MIN_COMPLETED:
            return []
        first = bisect_left(self._vocabulary, start)
        nearby = self._vocabulary[first : first + MAX_COMPLETIONS]
        return [word for word in nearby if word.startswith(start)]


def _postings(documents: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, _Postings]:
    frequency = Counter(word for doc in documents for word in set().union(*doc.values()))
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
    return {
        field: max(1.0, sum(len(document[field]) for document in documents) / count)
        for field in FIELDS
    }


def _worths(
    document: Mapping[str, Sequence[str]],
    mean_lengths: Mapping[str, float],
    rarities: Mapping[str, float],
) -> Iterator[tuple[str, float]]:
    """BM25F's saturated weight of each word, plus its share in what the tool is called.

    The share is the word's part of a unit vector over name and title: the fewer other words there
    are, the more a tool is about this one.
    """
    weights: dict[str, float] = defaultdict(float)
    for field, (weight, by_length) in FIELDS.items():
        found = document[field]
        share = weight / (1 - by_length + by_length * len(found) / mean_lengths[field])
        for word in found:
            weights[word] += share
    called = {word: rarities[word] for word in (*document["name"], *document["title"])}
    norm = math.sqrt(sum(rarity * rarity for rarity in called.values())) or 1.0
    for word, weight in weights.items():
        yield word, weight / (_SATURATION + weight) + _CORE * called.get(word, 0.0) / norm


def _rarity(frequency: float, total: int) -> float:
    """BM25's inverse document frequency, never negative."""
    return math.log(1 + (max(0.0, total - frequency) + 0.5) / (frequency + 0.5))
