"""Where clauses end; that it depends on the text alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage_talker.engine.clauses import ClauseLimits, ClauseSplitter
from omnistage_talker.models import Clause


def split(text: str, sizes: list[int] | None = None, limits: ClauseLimits | None = None) -> list[str]:
    """Clauses of a text that comes in pieces of the given sizes, the rest in one."""
    return [clause.text for clause in cut(text, sizes, limits)]


def cut(text: str, sizes: list[int] | None = None, limits: ClauseLimits | None = None) -> list[Clause]:
    splitter = ClauseSplitter(limits)
    clauses: list[Clause] = []
    start = 0
    for size in sizes or []:
        clauses += splitter.feed(text[start : start + size])
        start += size
    return clauses + splitter.feed(text[start:]) + splitter.finish()


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("", []),
        (" \n\t ", []),
        ("Hello", ["Hello"]),
        ("  Hello there.  ", ["Hello there."]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("What?! Yes.", ["What?!", "Yes."]),
        ("Dr. Smith and Mrs. Jones met Prof. Lee.", ["Dr. Smith and Mrs. Jones met Prof. Lee."]),
        ("J. K. Rowling wrote it. George R. R. Martin did not.", None),
        ("So do I. Then we left.", ["So do I.", "Then we left."]),
        ("Pi is 3.14 or so. It costs $1,234.56. Next.", ["Pi is 3.14 or so.", "It costs $1,234.56.", "Next."]),
        ("At 10:30 a.m. we met. At 5 p.m. The rest came.", ["At 10:30 a.m. we met.", "At 5 p.m.", "The rest came."]),
        ("The U.S. Army came. It left.", ["The U.S. Army came.", "It left."]),
        ("Fruit, e.g. Apples, vs. Pears.", ["Fruit, e.g. Apples, vs. Pears."]),
        ("See fig. 3 and No. 5. I said no. Then left.", ["See fig. 3 and No. 5.", "I said no.", "Then left."]),
        ("Born Jan. 5 there. It was in Jan. Then", ["Born Jan. 5 there.", "It was in Jan.", "Then"]),
        ("Well... maybe. Well... Maybe not.", ["Well... maybe.", "Well...", "Maybe not."]),
        ('"Really?" he asked. "Yes." She left.', ['"Really?" he asked.', '"Yes."', "She left."]),
        ("(It rained.) We stayed.", ["(It rained.)", "We stayed."]),
        ("**Bold.** Plain.", ["**Bold.**", "Plain."]),
        ("Visit example.com/a.b?c=d. Then go.", ["Visit example.com/a.b?c=d.", "Then go."]),
        ("Write to me@example.org. Please.", ["Write to me@example.org.", "Please."]),
        ("1. First\n2. Second\n10. Tenth", ["1. First", "2. Second", "10. Tenth"]),
        ("It was 1999. Then came 2000.", ["It was 1999.", "Then came 2000."]),
        ("a. first one\nb. second one", ["a. first one\nb. second one"]),
        ("Title\n\nText follows", ["Title", "Text follows"]),
        ("- Apples\n- Pears", ["- Apples", "- Pears"]),
        ("broken\nline", ["broken\nline"]),
        ("no sentence\n\nbut a paragraph", ["no sentence", "but a paragraph"]),
        ("windows\r\n\r\nlines", ["windows", "lines"]),
        ("... Hello", ["... Hello"]),
        ("Hello      \n\n         there", ["Hello", "there"]),
    ],
)
def test_sentences_and_lines(text: str, clauses: list[str] | None) -> None:
    expected = clauses or ["J. K. Rowling wrote it.", "George R. R. Martin did not."] if text else []
    assert split(text) == (expected if text.strip() else [])


def test_a_line_broken_for_width_goes_on() -> None:
    wrapped = "This line of an old letter was broken for width by its writer\nAnna, who"
    assert split(wrapped) == [wrapped]
    listed = "This line is just as long as the one of the letter was, it seems\n- but a list follows"
    assert len(split(listed)) == 2


LIMITS = ClauseLimits(first_min_chars=20, min_chars=40, rest_chars=10, max_chars=80)


def test_the_first_clause_may_be_shorter() -> None:
    text = "Well then my dear friends, here we are together, and it has been a long, long time since we met, so welcome"
    clauses = split(text, limits=LIMITS)
    assert clauses[0] == "Well then my dear friends,"
    assert all(len(clause) >= LIMITS.min_chars for clause in clauses[1:-1])
    assert " ".join(clauses) == text


def test_no_cut_shortly_before_the_end() -> None:
    assert split("This is long enough, too.", limits=LIMITS) == ["This is long enough, too."]
    assert split("This is long enough, too", limits=LIMITS) == ["This is long enough, too"]


def test_no_cut_inside_numbers_with_commas() -> None:
    text = "The whole population was 1,234,567,890 people in that year of the count"
    assert split(text, limits=LIMITS) == [text]


def test_a_clause_comes_as_soon_as_its_end_is_certain() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("Hello there.") == []
    assert splitter.feed(" ") == []
    assert splitter.feed("How") == [Clause(text="Hello there.")]
    assert splitter.feed(" are you?") == []
    assert splitter.finish() == [Clause(text="How are you?")]
    assert splitter.finish() == []


def test_clauses_know_whether_they_begin_and_end_a_sentence() -> None:
    text = "Well then my dear friends, here we are together at last. Good! Then " + "word " * 20 + "\n\nEnd"
    clauses = cut(text, limits=LIMITS)
    assert [(clause.sentence_start, clause.sentence_end) for clause in clauses] == [
        (True, False),
        (False, True),
        (True, True),
        (True, False),
        (False, True),
        (True, True),
    ]


def test_long_text_without_marks_is_cut_between_words() -> None:
    text = "word " * 200
    clauses = split(text, limits=LIMITS)
    assert all(LIMITS.max_chars - 5 <= len(clause) <= LIMITS.max_chars for clause in clauses[:-1])
    assert " ".join(clauses) == text.strip()


def test_a_comma_is_preferred_where_a_cut_is_forced() -> None:
    text = "these are some words of the first half and so on here, then " + "more words without end " * 4
    limits = ClauseLimits(first_min_chars=1000, min_chars=1000, rest_chars=10, max_chars=80)
    assert split(text, limits=limits)[0].endswith("here,")


@pytest.mark.parametrize("filler", ["a", "!", ".", " ", "\n", "a.", "1", "-", "—", "日", "\U0001f600", ". ", "I. "])
def test_long_monotonous_texts(filler: str) -> None:
    text = filler * 3000
    clauses = split(text)
    assert all(0 < len(clause) <= ClauseLimits().max_chars for clause in clauses)
    assert "".join("".join(clauses).split()) == "".join(text.split())


PIECES = st.sampled_from(
    [
        *"aZ1 .,!?\n\"')*-—…:;",
        " ",
        ". ",
        ", ",
        "\n\n",
        "Dr. ",
        "e.g. ",
        "No. 5",
        "3.14",
        "a.m. ",
        "some words here ",
        "antidisestablishmentarianism",
        "...",
        "     ",
    ]
)


@settings(deadline=None, max_examples=300)
@given(parts=st.lists(PIECES, max_size=80), sizes=st.lists(st.integers(0, 12), max_size=80))
def test_pieces_do_not_matter(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    clauses = cut(text, limits=LIMITS)
    assert cut(text, sizes, LIMITS) == clauses
    assert cut(text, [1] * len(text), LIMITS) == clauses
    whole = [clause.text for clause in clauses]
    assert "".join("".join(whole).split()) == "".join(text.split())
    assert all(len(clause) <= LIMITS.max_chars and clause == clause.strip() for clause in whole)


@settings(deadline=None)
@given(text=st.text(max_size=400), size=st.integers(1, 50))
def test_any_text_is_kept(text: str, size: int) -> None:
    whole = split(text, limits=LIMITS)
    assert split(text, [size] * (len(text) // size), LIMITS) == whole
    assert "".join("".join(whole).split()) == "".join(text.split())
