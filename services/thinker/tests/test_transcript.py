"""Detokenizer, stop strings and the transcript made of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage_thinker.engine.detokenizer import Detokenizer
from omnistage_thinker.engine.stop_strings import StopStrings
from omnistage_thinker.engine.transcript import Transcript


class Bytes:
    """A tokenizer whose tokens are bytes; 256 is special."""

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


TEXTS = ["plain", " leading space", "naïve", "日本語", "😀👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301\u0302x", "a\ufffdb", "", "\n\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_out_whole_and_never_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(Bytes())  # type: ignore[arg-type]
    parts = [detokenizer.add(byte) for byte in text.encode()]
    assert "".join(parts) + detokenizer.finish() == text
    assert all(len(part) <= 1 for part in parts)
    for end, part in enumerate(parts, start=1):
        assert part == "" or text.encode()[:end].decode().endswith(part)


@given(st.binary(max_size=40))
def test_broken_bytes_give_what_decoding_all_at_once_gives(data: bytes) -> None:
    detokenizer = Detokenizer(Bytes())  # type: ignore[arg-type]
    text = "".join(detokenizer.add(byte) for byte in data) + detokenizer.finish()
    assert text == data.decode(errors="replace")


def test_special_tokens_add_nothing_and_break_nothing() -> None:
    detokenizer = Detokenizer(Bytes())  # type: ignore[arg-type]
    first, second, third = "€".encode()
    assert [detokenizer.add(token) for token in (first, 256, second, third)] == ["", "", "", "€"]


@pytest.mark.parametrize(
    ("stops", "parts", "given_parts", "rest", "hit"),
    [
        ((), ["ab", "c"], ["ab", "c"], "", False),
        (("",), ["ab"], ["ab"], "", False),
        (("X",), ["ab", "cXd"], ["ab", "c"], "", True),
        (("STOP",), ["a ST", "OP b"], ["a ", ""], "", True),
        (("STOP",), ["a S", "T", "O", "P"], ["a ", "", "", ""], "", True),
        (("STOP",), ["a ST", "UB"], ["a ", "STUB"], "", False),
        (("STOP",), ["a ST"], ["a "], "ST", False),
        (("aab",), ["aa", "ab"], ["", "a"], "", True),
        (("abc", "b"), ["ab"], ["a"], "", True),
        (("long stop", "p"), ["xlong sto", "p"], ["x", ""], "", True),
        (("\n\n",), ["one\n", "two\n", "\nthree"], ["one", "\ntwo", ""], "", True),
        (("日本",), ["x日", "本y"], ["x", ""], "", True),
        (("END",), ["END"], [""], "", True),
        (("b", "abc"), ["xa", "bc"], ["x", "a"], "", True),
    ],
)
def test_stop_strings(stops: tuple[str, ...], parts: list[str], given_parts: list[str], rest: str, hit: bool) -> None:
    stop = StopStrings(stops)
    assert [stop.add(part) for part in parts] == given_parts
    assert stop.hit is hit
    assert stop.finish() == rest
    if hit:
        assert stop.add("more") == ""


def test_of_several_stop_strings_the_one_complete_first_counts() -> None:
    stop = StopStrings(("yy", "xx"))
    assert stop.add("a xx b yy") == "a "


@given(
    text=st.text("abX", max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=5),
    stops=st.lists(st.text("abX", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_where_the_parts_are_cut_does_not_matter(text: str, cuts: list[int], stops: list[str]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    matcher = StopStrings(stops)
    out = "".join(matcher.add(text[a:b]) for a, b in pairwise(borders)) + matcher.finish()
    complete = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))]
    expected = text
    if complete:
        expected = text[: complete[0] - max(len(stop) for stop in stops if text[: complete[0]].endswith(stop))]
    assert out == expected
    assert matcher.hit == bool(complete)


@given(text=st.text("ab€X", max_size=20), stop=st.text("abX", min_size=1, max_size=3), data=st.data())
def test_a_transcript_goes_on_from_the_pieces_that_were_sent(text: str, stop: str, data: st.DataObject) -> None:
    tokens = list(text.encode())
    transcript = Transcript(Bytes(), (stop,))  # type: ignore[arg-type]
    pieces = [piece for piece in map(transcript.add, tokens) if piece is not None]
    last = transcript.finish()
    pieces += [last] if last else []
    assert "".join(piece.text for piece in pieces) == text.split(stop, 1)[0]
    sent = data.draw(st.integers(0, len(pieces)))
    known = tuple(token for piece in pieces[:sent] for token in piece.token_ids)
    again = Transcript(Bytes(), (stop,))  # type: ignore[arg-type]
    again.replay(known, sum(len(piece.text) for piece in pieces[:sent]))
    rest = [piece for piece in map(again.add, tokens[len(known) :]) if piece is not None]
    final = again.finish()
    assert [*rest, *([final] if final else [])] == pieces[sent:]


def test_tokens_without_text_travel_with_the_next_piece() -> None:
    transcript = Transcript(Bytes(), ())  # type: ignore[arg-type]
    first, second, third = "€".encode()
    assert transcript.add(first) is None
    assert transcript.add(second) is None
    piece = transcript.add(third)
    assert piece is not None
    assert (piece.text, piece.token_ids) == ("€", (first, second, third))
    assert transcript.finish() is None
