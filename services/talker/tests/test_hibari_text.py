"""What the English voice can read: scripts, marks of Markdown, phonemes."""

from __future__ import annotations

import pytest

from omnistage_talker.models.hibari.phonemes import pronounce, split_phonemes
from omnistage_talker.models.hibari.script import first_foreign, fold
from omnistage_talker.models.markdown import strip_markdown


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("Plain English, 1,234.56 and café naïve Łódź Nguyễn Ünïcödé.", None),
        ("\U0001f600 \U0001f1eb\U0001f1f7 ❤️ 5°C x² ½ © ™ № € ₹ → ≤ …", None),
        ("α decays, π is 3.14, 5 \u03bcm, 5 \u00b5m, 3 k\u2126, β-carotene, ΔT", None),
        ("Ｆｕｌｌ ｗｉｄｔｈ, 𝐛𝐨𝐥𝐝, ﬁne", None),
        ("phonemes like ʃ ə ŋ, Hawai\u02bbi, ① ⅓ Ⅳ", None),
        ("", None),
        ("привет", (0, "Cyrillic")),
        ("Say 你好 now", (4, "Chinese")),
        ("ok مرحبا", (3, "Arabic")),
        ("ok שלום", (3, "Hebrew")),
        ("ok こんにちは", (3, "Hiragana")),
        ("안녕 ok", (0, "Hangul")),
        ("γειά", (0, "Greek")),
        ("नमस्ते", (0, "Devanagari")),
        ("ไทย", (0, "Thai")),
        ("mixedслово", (0, "Cyrillic")),
    ],
)
def test_first_word_of_another_script(text: str, foreign: tuple[int, str] | None) -> None:
    assert first_foreign(text) == foreign


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello \U0001f600 world", "Hello   world"),
        ("a\u200bb\u00adc\ufeff", "abc"),
        ("a\x00b\x07c", "a b c"),
        ("keep\nlines\tand tabs", "keep\nlines\tand tabs"),
        ("Ｈｅｌｌｏ 𝐛𝐨𝐥𝐝 ﬁne", "Hello bold fine"),
        ("Nguyễn Łódź café", "Nguyen Łódź café"),
        ("α and Ω", "alpha and omega"),
        ("٣ items", "3 items"),
        ("Say 你好 now", "Say  now"),
        ("don’t — “so” … 5°C x² ½ €5", "don’t — “so” … 5°C x² ½ €5"),
        ("e\u0301te\u0301", "été"),
        ("5 \u03bcm and 5 \u00b5m, 3 k\u2126", "5 \u00b5m and 5 \u00b5m, 3 k omega"),
        ("Hawai\u02bbi", "Hawaii"),
        ("① ⅓ Ⅳ", "1 1/3 IV"),
        ("β-carotene, ΔT", "beta -carotene, delta T"),
    ],
)
def test_fold(text: str, spoken: str) -> None:
    assert fold(text) == spoken


@pytest.mark.parametrize(
    ("clause", "read"),
    [
        ("## A heading", "A heading"),
        ("- item", "item"),
        ("* item with *stress* and **more** and ***both***", "item with stress and more and both"),
        ("> quoted", "quoted"),
        ("- [x] done", "done"),
        ("1. First", "1. First"),
        ("Use `code` and ~~old~~ __new__ _it_", "Use code and old new it"),
        ("See [the docs](https://example.com/a_b(c) now", "See the docs now"),
        ("![a cat](cat.png) here", "a cat here"),
        ("<https://example.com>", "https://example.com"),
        ("```python\nprint(1)\n```", "Code block."),
        ("> ~~~\n> cut off", "Code block."),
        ("```", ""),
        ("```inline``` code", "inline code"),
        ("---", ""),
        ("* * *", ""),
        ("|---|:--:|", ""),
        ("| a | b |", "a | b"),
        ("2 * 3 = 6 and a - b", "2 * 3 = 6 and a - b"),
        ("snake_case_name", "snake_case_name"),
        ("**Half bold", "Half bold"),
        ("Nothing special.", "Nothing special."),
    ],
)
def test_markdown(clause: str, read: str) -> None:
    assert strip_markdown(clause) == read


@pytest.mark.parametrize(
    ("phonemes", "pieces"),
    [
        ("abc", ["abc"]),
        ("abcd, efgh", ["abcd,", "efgh"]),
        ("ab, cd, efgh", ["ab, cd,", "efgh"]),
        ("ab cd efgh ij", ["ab cd", "efgh ij"]),
        ("abcdefghijkl", ["abcdefgh", "ijkl"]),
    ],
)
def test_phonemes_are_cut_to_length(phonemes: str, pieces: list[str]) -> None:
    assert split_phonemes(phonemes, limit=8) == pieces


def test_rules_that_fail_on_a_text_are_asked_word_by_word() -> None:
    def rules(text: str) -> str:
        if "x2" in text:
            raise IndexError(text)
        return f"<{text}>"

    assert pronounce(rules, "one two") == ("<one two>",)
    assert pronounce(rules, "one -x2 two") == ("<one> <x> <2> <two>",)


def test_long_numbers_and_links_are_kept_from_the_rules() -> None:
    asked = []

    def rules(text: str) -> str:
        asked.append(text)
        return "a"

    pronounce(rules, "[word](/həlˈO/) 1,000 " + "9" * 40)
    assert asked == ["[word] (/həlˈO/) 1,000 " + " ".join("9" * 40)]


@pytest.mark.parametrize("phonemes", ["", "...", "—", "( )", "ˈ"])
def test_nothing_to_be_heard(phonemes: str) -> None:
    assert pronounce(lambda _: phonemes, "text") == ()
