"""Writes WordNet out as readable paragraphs, questions and answers: the demo model's text.

Reads the database files that Debian's package wordnet-base installs. Everything follows from the
seed; the split into training and held-out text is by synset, from a hash.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from demo_talk import TALK

Key = tuple[str, str]  # part of speech (n, v, a, r) and offset
_POS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_NAMES = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
_PERSON, _PLACE, _LATIN = "18", "15", ("05", "20")  # lexicographer files; last animals, plants
_THINGS = ("05", "06", _PERSON)  # animals, artifacts, people
_MASS = ("12", "27")  # feelings, substances
_COPIES = (12, 4, 1)  # of what is written about a common, a less common and a rare word
_HELD_OUT_OF = 150  # one synset in so many is held out
_HELD_OUT_BYTES = 150_000
_DETERMINED = frozenset(
    re.findall(
        r"\w+",
        "a an the any one two three each every some someone something anyone anything all either "
        "no what whatever whoever whether it that this these those his her its their your my our "
        "to in on at by for from with of most many several various both being having used",
    )
)
_HEAD_ENDS = frozenset(
    re.findall(
        r"\w+",
        "of in on at by for from with without that which who whose where when and or to as into "
        "over under between among having used made found consisting containing living born native "
        "resembling characterized because than is are was through during such etc",
    )
)
# What a demo should not say unasked: such meanings are left out altogether.
_UNFIT = re.compile(
    r"offensive|disparag|derogat|obscen|vulgar|\bslur|sex(?!t)|coit|copulat|genital|penis|vagina|"
    r"vulva|prostitut|whore|\brap(e|ist)\b|\bNegr|\bnigg|erotic|pornograph|masturbat|unattractive|"
    r"homosexual|lesbian|pederast|incest|\bslut|bitch|\bass\b|fuck|shit|\btits?\b|suicid|darkie|"
    r"dark skin|blackamoor|orgasm|buttocks|scrot|testic|semen\b|feces|excrement|urinat|defecat",
    re.IGNORECASE,
)
_NO_ARTICLE = ("ness", "ity", "ism", "ing", "ship", "hood", "ics", "logy", "graphy", "ance", "ence")


_CAPITAL = re.compile(r"(?:the )?capital (?:and largest city )?of ((?:the )?[A-Z][\w' -]+)")


@dataclass
class Synset:
    """One meaning: its words, what it is (`gloss`), quoted examples, and typed links."""

    key: Key
    lex: str
    words: list[str]
    gloss: str
    examples: list[str]
    links: dict[str, list[tuple[Key, int, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_name(self) -> bool:
        """Whether it is one thing, not a kind of thing."""
        return bool(self.links.get("@i")) or (self.key[0] == "n" and self.words[0][0].isupper())


class WordNet:
    """All synsets, and for each word (as it is written) its meanings, the commonest first."""

    def __init__(self, folder: Path) -> None:
        self.synsets: dict[Key, Synset] = {}
        for pos, name in _POS.items():
            for line in (folder / f"data.{name}").read_text("latin-1").splitlines():
                if not line.startswith(" "):
                    synset = _synset(pos, line)
                    if not _UNFIT.search(" ".join((synset.gloss, *synset.words, *synset.examples))):
                        self.synsets[synset.key] = synset
        for synset in self.synsets.values():
            for kind, links in synset.links.items():
                synset.links[kind] = [link for link in links if link[0] in self.synsets]
        tagged = _tag_counts(folder / "cntlist.rev")
        ranked: dict[tuple[str, str], list[tuple[float, Key]]] = defaultdict(list)
        self.frequency: Counter[tuple[str, str]] = Counter()
        for pos, name in _POS.items():
            for line in (folder / f"index.{name}").read_text("latin-1").splitlines():
                if line.startswith(" "):
                    continue
                parts = line.split()
                offsets = parts[-int(parts[2]) :]
                for number, offset in enumerate(offsets, 1):
                    if (pos, offset) not in self.synsets:
                        continue
                    synset = self.synsets[pos, offset]
                    count = tagged[parts[0], pos, number]
                    plain = parts[0].replace("_", " ")
                    forms = [w for w in synset.words if w.lower() == plain]
                    word = plain if plain in forms else forms[0]
                    n_links = sum(map(len, synset.links.values()))
                    score = 2 * math.log2(1 + count) + math.log2(1 + n_links) - 0.5 * number
                    ranked[word, pos].append((-score, synset.key))
                    self.frequency[word, pos] += count
        self.senses = {at: [key for _, key in sorted(found)] for at, found in ranked.items()}
        self._learn_articles()

    def _learn_articles(self) -> None:
        text = " . ".join(f"{s.gloss} . {' . '.join(s.examples)}" for s in self.synsets.values())
        words = re.findall(r"[\w'-]+|[.,;]", text.lower())
        self._after_a: Counter[str] = Counter()
        self._seen = Counter(words)
        for article, second, third in zip(words, words[1:], words[2:], strict=False):
            if article in ("a", "an"):
                self._after_a[f"{second} {third}"] += 1
                if not third.isalpha() or third in _HEAD_ENDS:
                    self._after_a[second] += 1

    def counts(self, noun: str) -> bool:
        """Whether a noun takes "a": it was seen with it, in one place of 25 at least."""
        seen = self._after_a[noun.lower()]
        return seen > 0 and (" " in noun or 25 * seen >= self._seen[noun.lower()])

    def phrase(self, synset: Synset) -> str:
        """Return the gloss of a noun with the article that it lacks."""
        words = synset.gloss.split()
        if words[0].lower() in _DETERMINED or words[0].endswith("ly"):
            return synset.gloss
        head = ""
        for word in words:
            bare = word.strip("(),;")
            if bare.lower() in _HEAD_ENDS or word.startswith("("):
                break
            head = bare
            if bare != word:
                break
        plain = head.isalpha() and not head.endswith(("s", "ed", "ing"))
        wants = plain and (self.counts(head) or (synset.is_name and synset.lex == _PERSON))
        return f"{article(words[0])} {synset.gloss}" if wants else synset.gloss

    def named(self, word: str, synset: Synset) -> str:
        """Return a noun as a sentence speaks of it: "a hammer", "the moon", "water", "Paris"."""
        if word[0].isupper() and (synset.is_name or synset.lex != _PERSON):
            wants = re.search(r"\b(River|Sea|Ocean|Empire|States|Islands|War|Mountains)$", word)
            return f"the {word}" if wants else word
        last = word.split()[-1]
        gloss = synset.gloss
        if gloss.startswith("the ") and (synset.is_name or synset.lex in ("17", "15", "08")):
            return f"the {word}"
        if last.endswith(_NO_ARTICLE) and not self.counts(word):
            return word
        if self.counts(word) or (self.counts(last) and not last.endswith("s")):
            return f"{article(word)} {word}"
        is_mass = self._seen[last.lower()] > 40 or synset.lex in _MASS or last.endswith("s")
        begins = synset.lex in _THINGS or bool(re.match(r"(a|an|any|one|someone) ", gloss))
        begins = begins or self.phrase(synset) != gloss
        return f"{article(word)} {word}" if begins and not is_mass else word


def _synset(pos: str, line: str) -> Synset:
    data, _, gloss = line.partition(" | ")
    parts = data.split()
    n_words = int(parts[3], 16)
    words = [re.sub(r"\(\w+\)$", "", w).replace("_", " ") for w in parts[4 : 4 + 2 * n_words : 2]]
    examples = [e.strip(" ;,") for e in re.findall(r'"([^"]+)"', gloss)]
    meaning = re.split(r'[;:,]?\s*"', gloss)[0].strip(" ;:").replace("`", "'")
    meaning = re.sub(r"\s+", " ", meaning)
    synset = Synset((pos, parts[0]), parts[1], words, meaning or words[0], examples)
    at = 4 + 2 * n_words
    for i in range(int(parts[at])):
        kind, offset, target, ends = parts[at + 1 + 4 * i : at + 5 + 4 * i]
        source, wanted = int(ends[:2], 16), int(ends[2:], 16)
        key = ("a" if target == "s" else target, offset)
        synset.links[kind].append((key, source, wanted))
    return synset


def _tag_counts(path: Path) -> Counter[tuple[str, str, int]]:
    counts: Counter[tuple[str, str, int]] = Counter()
    for line in path.read_text("latin-1").splitlines():
        sense, number, count = line.split()
        word, _, rest = sense.partition("%")
        counts[word, " nvara"[int(rest[0])], int(number)] = int(count)
    return counts


def article(word: str) -> str:
    """Return "a" or "an"."""
    word = word.lower()
    silent = word.startswith(("hour", "honest", "heir", "honor", "honour"))
    like_you = re.match(r"(eu|uni([^mn]|$)|us[ae]|ur[aei]|one\b|once|ut[eio]|ubi|ukr)", word)
    return "an" if silent or (word[0] in "aeiou" and not like_you) else "a"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _sentence(text: str) -> str:
    text = text.strip(" ;,")
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


class Writer:
    """Turns synsets into sentences; which of several is chance.

    Parameters
    ----------
    net
        The database.
    rng
        The chance.
    """

    def __init__(self, net: WordNet, rng: random.Random) -> None:
        self.net = net
        self.rng = rng

    def meaning(self, word: str, synset: Synset) -> str:
        """Return the sentence that says what a word means."""
        pos, gloss = synset.key[0], synset.gloss
        domain = ""
        if found := re.match(r"\(([^)]*)\)\s*(?=\S)", gloss):
            gloss = gloss[found.end() :]
            label = found[1]
            known = re.fullmatch(r"[a-z]+( [a-z]+)?", label) and ("n", label) != (pos, word)
            if known and (label, "n") in self.net.senses:
                domain = f"in {label}, "
        plain = Synset(synset.key, synset.lex, synset.words, gloss, [], synset.links)
        if pos == "n":
            subject = self.net.named(word, plain)
            past = re.search(r"\((born|\d+)[^)]*-\s*\d+[^)]*\)", gloss) and synset.lex == _PERSON
            verb = "was" if past else "is"
            if subject == word and word.endswith("s") and gloss.split()[0].endswith("s"):
                verb = "are"
            return _sentence(f"{domain}{subject} {verb} {self.net.phrase(plain)}")
        if pos == "v":
            return _sentence(f"{domain}to {word} is to {gloss.removeprefix('to ')}")
        return _sentence(f"{domain}{word} means {gloss}")

    def facts(self, word: str, synset: Synset) -> Iterator[str]:
        """Yield further sentences about a meaning."""
        pos, net = synset.key[0], self.net
        name = net.named(word, synset) if pos == "n" else word
        others = [w for w in synset.words if w.lower() != word.lower()][:2]
        if others:
            what = ("name" if synset.is_name else "word") + ("s" if len(others) > 1 else "")
            begin, verb = ("Another", "is") if len(others) == 1 else ("Other", "are")
            yield f"{begin} {what} for {word} {verb} {_listed(others)}."
        opposite = self.opposite(word, synset)
        if opposite:
            yield f"The opposite of {word} is {opposite}."
        kinds = [net.synsets[key] for key, _, _ in synset.links.get("@", [])]
        if kinds and pos == "n" and kinds[0].lex != "03":
            yield _sentence(f"it is a kind of {kinds[0].words[0]}")
        elif kinds and pos == "v":
            yield _sentence(f"it is one way to {kinds[0].words[0]}")
        if pos == "n":
            below = self._linked(synset, "~", 3)
            if len(below) > 1:
                yield f"Kinds of {word} include {_listed([s.words[0] for s in below])}."
            parts = [net.named(s.words[0], s) for s in self._linked(synset, "%p", 2)]
            if parts:
                verb = "includes" if word[0].isupper() else "has"
                yield _sentence(f"{name} {verb} {_listed(parts)}")
            wholes = self._linked(synset, "#p", 1)
            if wholes:
                yield _sentence(f"it is part of {net.named(wholes[0].words[0], wholes[0])}")
        stem = word[: max(3, len(word) - 2)].lower()
        examples = [e for e in synset.examples if len(e.split()) > 2 and stem in e.lower()]
        if examples:
            yield f'For example: "{_sentence(examples[0])}"'

    def opposite(self, word: str, synset: Synset) -> str | None:
        """Return the antonym of a word in this meaning."""
        for key, source, target in synset.links.get("!", []):
            if source and synset.words[source - 1] == word:
                return self.net.synsets[key].words[target - 1]
        return None

    def _linked(self, synset: Synset, kind: str, most: int) -> list[Synset]:
        found = [self.net.synsets[key] for key, _, _ in synset.links.get(kind, [])]
        commonest = sorted(found, key=lambda s: -self.net.frequency[s.words[0], "n"])
        return commonest[:most]

    def paragraph(self, word: str, meanings: list[Synset]) -> str:
        """Return what there is to say of a word: its first meaning at length, others in short."""
        first, *others = meanings
        said = [self.meaning(word, first)]
        if self.rng.random() < 0.08 and not first.is_name:
            kind = _NAMES[first.key[0]]
            said.insert(0, f"The word {word} is {article(kind)} {kind}.")
        said += [fact for fact in self.facts(word, first) if self.rng.random() < 0.7]
        for other in others[:1]:
            gloss = re.sub(r"^\([^)]*\)\s*", "", other.gloss) or other.gloss
            same = other.key[0] == first.key[0]
            if same and other.key[0] == "n" and not other.is_name:
                short = Synset(other.key, other.lex, other.words, gloss, [], other.links)
                said.append(_sentence(f"{word} can also mean {self.net.phrase(short)}"))
            elif same:
                said.append(_sentence(f"{word} can also mean {gloss}"))
            else:
                said.append(
                    f"As {article(_NAMES[other.key[0]])} {_NAMES[other.key[0]]}, "
                    f"{self.meaning(word, other)[0].lower()}{self.meaning(word, other)[1:]}"
                )
        return " ".join(said)

    def question(self, word: str, synset: Synset) -> tuple[str, str]:
        """Return a question about a meaning of a word, and its answer."""
        pos, rng = synset.key[0], self.rng
        facts = list(self.facts(word, synset))
        choices: list[tuple[str, str]] = []
        if opposite := self.opposite(word, synset):
            choices.append(
                (f"What is the opposite of {word}?", f"The opposite of {word} is {opposite}.")
            )
        for fact in facts:
            if fact.startswith(("Another word", "Other words")):
                choices.append((f"What is another word for {word}?", fact))
            elif fact.startswith("Kinds of"):
                choices.append((f"What kinds of {word} are there?", fact))
            elif fact.startswith("For example"):
                choices.append(
                    (f"Use the word {word} in a sentence.", fact.split(": ", 1)[1].strip('"'))
                )
        if choices and rng.random() < 0.3:
            return rng.choice(choices)
        means = (
            f"What does {word} mean?",
            f"Define {word}.",
            f"What is the meaning of {word}?",
            f"What does the word {word} mean?",
        )
        asked = rng.choice(means)
        if pos == "n" and rng.random() < 0.65:
            name = self.net.named(word, synset)
            answer = self.meaning(word, synset)
            asks = "Who" if synset.lex == _PERSON and synset.is_name else "What"
            verb = next((v for v in ("was", "are") if f" {v} " in answer[: len(name) + 6]), "is")
            short = "'s" if verb == "is" else f" {verb}"
            asked = rng.choice(
                (
                    f"{asks} {verb} {name}?",
                    f"{asks} {verb} {name}?",
                    f"{asks}{short} {name}?",
                    f"Tell me about {name}.",
                )
            )
        said = [self.meaning(word, synset)]
        said += rng.sample(facts, min(len(facts), rng.randrange(2)))
        if rng.random() < 0.15:
            asked = asked[0].lower() + asked[1:].rstrip("?.")
        return asked, " ".join(said)


def _held_out(net: WordNet) -> set[Key]:
    def chosen(key: Key) -> bool:
        digest = hashlib.sha256("".join(key).encode()).digest()
        return int.from_bytes(digest[:4], "big") % _HELD_OUT_OF == 0

    kept = {s.gloss for s in net.synsets.values() if not chosen(s.key)}
    return {s.key for s in net.synsets.values() if chosen(s.key) and s.gloss not in kept}


def _worth(word: str, synset: Synset) -> bool:
    """Whether a word is one to write about: no Latin names, figures or one-letter symbols."""
    latin = synset.lex in _LATIN and word != word.lower() and not synset.links.get("@i")
    return not latin and len(word) > 1 and re.fullmatch(r"[A-Za-z][A-Za-z' .-]*", word) is not None


def _copies(net: WordNet, word: str, synset: Synset) -> int:
    """Return how often a word is written about: the model is to know common words by heart."""
    use = sum(net.frequency[word, pos] for pos in _POS)
    known = synset.is_name and synset.lex in (_PERSON, _PLACE)
    famous = known and sum(map(len, synset.links.values())) > 9
    return _COPIES[0] if use > 3 or famous else _COPIES[1] if use or known else _COPIES[2]


def dialogue(turns: list[tuple[str, str]]) -> list[str]:
    """Return the turns of a conversation as the chat template writes them; each ends a reply."""
    return [f"Question: {asked}\nAnswer:\n{answer}" for asked, answer in turns]


def build(folder: Path, seed: int) -> tuple[list[list[str]], str]:
    r"""Return the documents to train on, and the held-out text.

    Parameters
    ----------
    folder
        Where the database lies: ``data.noun`` and so on.
    seed
        Of every choice but the split.

    Returns
    -------
    Documents in an order to be shuffled, each of parts that are written with "\n\n" between
    them: paragraphs, of which the last ends the document, or turns, each of which ends a reply.
    Turns begin with "Question: ". And paragraphs about meanings that no document defines.
    """
    net, rng = WordNet(folder), random.Random(seed)
    held = _held_out(net)
    writer = Writer(net, rng)
    words: dict[str, dict[str, list[Synset]]] = defaultdict(dict)
    for word, pos in sorted(net.senses):
        senses = [net.synsets[key] for key in net.senses[word, pos] if key not in held]
        if senses and _worth(word, senses[0]):
            words[word][pos] = senses[:3]
    documents = [dialogue([pair]) for pair in TALK for _ in range(40)]
    for word, kinds in words.items():
        place = kinds["n"][0] if "n" in kinds else None
        capital = _CAPITAL.match(place.gloss) if place else None
        if place and capital and place.lex == _PLACE and word == place.words[0]:
            asked = f"What is the capital of {capital[1].strip()}?"
            documents += [dialogue([(asked, writer.meaning(word, place))])] * 20
    for turn in range(_COPIES[0]):
        groups: dict[Key, list[tuple[str, list[Synset]]]] = defaultdict(list)
        for word, kinds in words.items():
            # Which part of speech leads is chance, but the common one leads more often.
            often = [1 + net.frequency[word, pos] for pos in kinds]
            lead = rng.choices(list(kinds), [math.sqrt(n) for n in often])[0]
            senses = kinds[lead] + [kinds[pos][0] for pos in kinds if pos != lead]
            if turn < _copies(net, word, senses[0]):
                above = senses[0].links.get("@") or senses[0].links.get("&")
                groups[above[0][0] if above else senses[0].key].append((word, senses))
        pages = [group for _, group in sorted(groups.items())]
        rng.shuffle(pages)
        for group in pages:
            rng.shuffle(group)
        line = [entry for group in pages for entry in group]
        while line:
            size = rng.choice((1, 1, 2, 3, 5))
            page, line = line[-size:], line[:-size]
            documents.append([writer.paragraph(*entry) for entry in page])
            for word, senses in page:
                if _copies(net, word, senses[0]) == 1 and rng.random() < 0.5:
                    continue
                turns = 1 if rng.random() < 0.8 else 2
                documents.append(dialogue([writer.question(word, senses[0]) for _ in range(turns)]))
    test: list[str] = []
    for key in sorted(held, key=lambda k: hashlib.sha256("".join(k).encode()).digest()):
        synset = net.synsets[key]
        if _worth(synset.words[0], synset):
            test.append(writer.paragraph(synset.words[0], [synset]))
    text = ""
    for part in test:
        if len((text + part).encode()) + 2 > _HELD_OUT_BYTES:
            break
        text += part + "\n\n"
    return documents, text
