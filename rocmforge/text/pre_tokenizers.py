"""The pre-tokenizers of byte-level BPE: how each cuts text into words, as llama.cpp does.

A row of `PRE_TOKENIZERS` is a name that ``tokenizer.ggml.pre`` may have. The patterns are those of
Oniguruma, which `tokenizers` uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_ALNUM_END = r"[^\W_](?=[\n,.，。、！？])"  # no word of any pre-tokenizer goes on from here


class PreTokenizer(NamedTuple):
    """How byte-level BPE cuts text into words before it merges.

    `patterns` are applied in turn, each to the pieces that the one before left; what a pattern
    does not match is a piece too. `whole_words`: a word that is a token needs no merges. `add_bos`
    applies where the file does not say. `cut` finds ends of words: long text is cut there first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    cut: str = rf"\S(?= )|{_ALNUM_END}"


# Possessive quantifiers wherever nothing is ever given back: the matcher then needs no backtracking
# stack and a run of ten million blanks cannot exhaust its retry limit.
_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s++"
_ENDING = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_LINES = r"|(?:[^\S\r\n]*+[\r\n]++)++"
_BLANKS = r"|\s+(?!\S)|\s++"
_MARKS = r"| ?[^\s\p{L}\p{N}]++[\r\n]*+" + _LINES
_UNENDING = r"[^\r\n\p{L}\p{N}]?\p{L}++|\p{N}{%s}" + _MARKS + _BLANKS
_WORDS = f"{_ENDING}|{_UNENDING}"
_NUMBERED = r"|\p{N}{%s}| ?[^\s\p{L}\p{N}]++[\r\n/]*+" + _LINES + _BLANKS


def _cased(ending: str) -> str:
    """Words of capitals, then of other letters; those beyond ASCII count as both.

    That is A*B+ or else A+B*, with A letters but a-z and B letters but A-Z, written so that nothing
    is given back: A* to an ASCII small letter and on with B*; else A* up to its last letter beyond
    ASCII; else capitals alone.
    """
    before = r"[^\r\n\p{L}\p{N}]?"
    return "|".join(
        before + letters + ending
        for letters in (
            r"[\p{L}&&[^a-z]]*+[a-z][\p{L}&&[^A-Z]]*+",
            r"(?:[A-Z]*+[\p{L}&&[^a-zA-Z]]++)++",
            "[A-Z]++",
        )
    )


_PRINTED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]++|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]++"
)
_DEEPSEEK_WORDS = _PRINTED + r"| ?[\p{P}\p{S}]++[\r\n]*+" + _LINES + _BLANKS
_SPARK = _PRINTED + r"| ?[\p{P}\p{S}]++|[\r\n]" + _BLANKS
_ACCENTED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]++"
_QWEN35 = (
    rf"{_ENDING}|{_ACCENTED}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]++[\r\n]*+" + _LINES + _BLANKS
)
_SEED_CODER = _ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}++|\p{N}| ?[^\s\p{L}\p{N}]++" + _LINES + _BLANKS
_PHRASES = (
    _ENDING
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N}"
    + r"| ?[^\s\p{L}\p{N}]++[\r\n/]?"
    + _LINES
    + _BLANKS
)
_POWERS = "".join(rf"|\s{{{1 << n}}}(?!\S)" for n in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s"
_JAIS2 = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}++|\p{{N}}{{1,3}}" + _MARKS + _POWERS
_HAN = (
    r"\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}"
    r"\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}\x{2f800}-\x{2fa1f}"
)
_KIMI_K2 = (
    rf"[{_HAN}]++|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]++(?:{_ENDING})?|\p{{N}}{{1,3}}"
    + _MARKS
    + _BLANKS
)
_CHINESE = "[一-龥぀-ゟ゠-ヿ]++"
# Threes from the right: what is before a number with its first one to three figures, then three by
# three. Hugging Face also cuts before the number; llama.cpp does not.
_THREES = r"(?<=\p{N})\p{N}{3}|(?:\A|(?<=\p{N}))\P{N}*+\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))"
# Threes from the right that are cut from what is before them only: a piece begins with three
# figures and ends before the next three, or it is what comes before the first three.
_HEAD = "[0-9]{1,2}(?=(?:[0-9]{3})*+(?![0-9]))"
_REST = f"(?:[^0-9]++(?:{_HEAD})?)*+"
_JOINED_THREES = rf"\A(?:{_HEAD}{_REST}|[^0-9]++(?:{_HEAD})?{_REST})|[0-9]{{3}}{_REST}"
_CASED_LETTERS = (  # with capitals and small letters; as of the Unicode of that model
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    r"ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    r"Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_ASIAN = (
    "一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f"
    "\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]++"
_PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]++", _GPT2, r"\p{N}++", "[0-9]{3}")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": PreTokenizer((_WORDS % "1,3",), whole_words=True, add_bos=True),
    "bloom": PreTokenizer((_BLOOM,)),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}++", r"\s?\p{P}++", r"[一-龥ࠀ-一가-\x{d7ff}&&[^\s]]++", r"\p{N}")
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]++",
            r"\s?[!-/:-~！-／：-～‘-‟、。]++",
            r"\s++\z",
            r"[一-龥ࠀ-一가-\x{d7ff}&&[^\s]]++",
            r"\p{N}++",
        )
    ),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", _CHINESE, _DEEPSEEK_WORDS)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]++", _GPT2, "[0-9]{3}")),
    "glm4": PreTokenizer((_WORDS % "1,3",), whole_words=True),
    "gpt-4o": PreTokenizer((_cased(f"(?:{_ENDING})?") + _NUMBERED % "1,3",)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _WORDS % "1,"), whole_words=True),
    "qwen2": PreTokenizer((_WORDS % "1",)),
    "qwen35": PreTokenizer((_QWEN35,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "smaug-bpe": PreTokenizer((_WORDS % "1,3",)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "tekken": PreTokenizer((_cased("") + _NUMBERED % "1",), whole_words=True, add_bos=True),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "afmoe": PreTokenizer((_THREES, f"[{_ASIAN}]++", _DEEPSEEK_WORDS)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]++>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]| {4}| {2}",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "exaone-moe": PreTokenizer((_PHRASES,), cut=_ALNUM_END),
    "jais-2": PreTokenizer((_JAIS2,)),
    "kimi-k2": PreTokenizer((_KIMI_K2,)),
    "laguna": PreTokenizer((r"\n++", _WORDS % "1")),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _CHINESE, _SPARK, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}++", _JOINED_THREES), cut=r"\s(?=[0-9])"),
    "tiny_aya": PreTokenizer((_THREES, f"{_ACCENTED}(?:{_ENDING})?" + _NUMBERED % "1,3")),
    "ufakzeka": PreTokenizer((_UNENDING % "1",)),
    "youtu": PreTokenizer(
        (
            r"[가-힣ㄱ-ㆎ]++|[！…“”‘’—：；，、-〿︰-﹏]++|[ㄅ-ㄯ]++|[一-龥぀-ゟ゠-ヿ]++",
            f"{_ACCENTED}(?:{_ENDING})?" + _NUMBERED % "1",
        ),
        whole_words=True,
    ),
}
# Names under which llama.cpp cuts and flags text exactly as under the name on the right.
_ALIASES = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), "llama-bpe"
    ),
    **dict.fromkeys(("dbrx", "chatglm-bpe"), "smaug-bpe"),
    **dict.fromkeys(("hunyuan-dense", "joyai-llm", "hy_v4"), "deepseek-v3"),
    **dict.fromkeys(("llama4", "kanana2", "talkie", "minimax-m2"), "gpt-4o"),
    "glm5": "glm4",
    **dict.fromkeys(
        (
            *(
                "deepseek-r1-qwen",
                "kormo",
                "megrez",
                "stablelm2",
                "hunyuan",
                "solar-open",
                "grok-2",
            ),
            *("bailingmoe", "bailingmoe2", "llada-moe", "f2llmv2"),
        ),
        "qwen2",
    ),
    "cohere2moe": "tiny_aya",
    **dict.fromkeys(
        (
            *("phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais"),
            *("trillion", "granite-docling"),
        ),
        "gpt-2",
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        "smollm",
    ),
    **dict.fromkeys(("poro-chat", "gpt3-finnish"), "bloom"),
}
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = _PRE_TOKENIZERS | {
    alias: _PRE_TOKENIZERS[name] for alias, name in _ALIASES.items()
}
