"""Cuts a text into words before their bytes are merged, by ``tokenizer.ggml.pre``.

The expressions are those of the models' own tokenizer.json, in Oniguruma's syntax. They are applied
one after the other, each to the pieces of the one before; the text between matches is a piece too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

UNNAMED = "default"
"""The name that stands for a file which names none."""


class Words(NamedTuple):
    """How the texts of a byte-level vocabulary are cut."""

    expressions: tuple[str, ...]
    whole: bool = False  # a word that is a token is that token, whatever merges say
    begins: bool = False  # a text begins with the first token, where the file says nothing of it


_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ONES, _THREES = r"\p{N}", r"\p{N}{1,3}"  # digits, each by itself or in threes


def _of_letters(
    digits: str,
    *,
    short: str = f"{_SHORT}|",
    letter: str = r"\p{L}",
    no_letter: str = r"\p{L}",
    lines: str = r"[\r\n]*",
) -> str:
    """The expression for words as GPT-4's: letters, with one mark before them."""
    marks = rf" ?[^\s{no_letter}\p{{N}}]+{lines}"
    return rf"{short}[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}|{marks}{_SPACES}"


def _of_cases(digits: str, short: str) -> str:
    """The expression for words as GPT-4o's: they end before a capital after small letters."""
    large, small = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{first}{large}*{small}+{short}|{first}{large}+{small}*{short}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACES}"
    )


_CHINESE = "[一-龥\u3040-ゟ゠-ヿ]+"
_ASIAN = "[一-龥ࠀ-一가-\ud7ff]+"
_ALPHABETS = (
    "A-Za-z\u00b5À-ÖØ-öø-ƺƼ-ƿ\u01c4-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-\u03f5Ϸ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ"
    "-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c"
    "-\u213f\u2145-\u2149ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_STOPS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_OF_MARKS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_SPACES}"
)
_SENTENCES = " ?[^(\\s|.,!?…。\uff0c、।۔،)]+"

_GROUPS: Mapping[Words, str] = {
    Words((_GPT_2,)): (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert "
        "exaone4 mpt olmo jais trillion granite-docling"
    ),
    Words((_ONES, _GPT_2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"
    ),
    Words((_of_letters(_THREES),), whole=True, begins=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    Words((_of_letters(_THREES),), whole=True): "glm4 glm5",
    Words((_of_letters(_THREES),)): "dbrx smaug-bpe chatglm-bpe",
    Words((_of_letters(_ONES),)): (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"
    ),
    Words((_of_letters(_ONES, letter=r"[\p{L}\p{M}]", no_letter=r"\p{L}\p{M}"),)): "qwen35",
    Words((_of_letters(_ONES, lines="", no_letter=r"\p{L}\r\n"),)): "seed-coder",
    Words((_of_letters(_ONES, short=""),)): "ufakzeka",
    Words((r"[^\n]+|[\n]+", _of_letters(_ONES))): "laguna",
    Words((_THREES, _of_letters(r"\p{N}+")), whole=True): "minicpm5",
    Words((_of_cases(_ONES, ""),), whole=True, begins=True): "tekken",
    Words((_of_cases(_THREES, f"{_SHORT}?"),)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Words((r"\d{1,3}(?=(?:\d{3})*\b)", _of_cases(_THREES, f"{_SHORT}?"))): "tiny_aya cohere2moe",
    Words((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    Words(
        (r"[\r\n]", rf"\s?[{_ALPHABETS}]+", rf"\s?[{_STOPS}]+", r"\s+$", _ASIAN, _ONES)
    ): "deepseek-llm",
    Words((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, _ONES)): "deepseek-coder",
    Words((_THREES, _CHINESE, _OF_MARKS)): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    Words((r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, "[0-9][0-9][0-9]")): "falcon",
    Words((_SENTENCES,)): "poro-chat bloom gpt3-finnish",
    Words((_SENTENCES, _ONES)): "viking",
    Words((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")): UNNAMED,
}
WORDS: Mapping[str, Words] = {
    name: words for words, names in _GROUPS.items() for name in names.split()
}
"""By their names."""
