"""The grammar of subjects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.errors import ConfigError
from omnistage.subjects import DEAD, FEED, OUT, WORK, Parsed, Subjects, parse, token

SUBJECTS = Subjects("omni")
tokens = st.text("abcxyz019_-", min_size=1, max_size=64)


def test_subjects_read_from_general_to_particular() -> None:
    assert SUBJECTS.work("codec", "wave", "r1") == "omni.v1.work.codec.wave.r1"
    assert SUBJECTS.feed("talker", "heart", "r1", "talker-codec") == "omni.v1.feed.talker.heart.r1.talker-codec"
    assert SUBJECTS.out("codec", "wave", "r1", "codec-gateway") == "omni.v1.out.codec.wave.r1.codec-gateway"
    assert SUBJECTS.dead("codec", "wave", "r1") == "omni.v1.dead.codec.wave.r1"
    assert SUBJECTS.work_of("codec", "wave") == "omni.v1.work.codec.wave.*"


def test_live_subjects_are_where_the_republish_rule_puts_them() -> None:
    source, destination = SUBJECTS.republish(FEED)
    assert (source, destination) == ("omni.v1.feed.>", "omni.v1.feed-live.>")
    subject = SUBJECTS.feed("talker", "heart", "r1", "e")
    assert SUBJECTS.live(subject) == subject.replace(source.rstrip(">"), destination.rstrip(">"))


def test_a_namespace_may_look_like_a_class() -> None:
    subject = Subjects("feed").feed("talker", "heart", "r1", "e")
    assert Subjects("feed").live(subject) == "feed.v1.feed-live.talker.heart.r1.e"


@given(tokens, tokens, tokens, tokens, tokens)
def test_what_was_built_can_be_parsed(namespace: str, stage: str, model: str, request_id: str, edge: str) -> None:
    subjects = Subjects(namespace)
    for kind, built in ((FEED, subjects.feed), (OUT, subjects.out)):
        subject = built(stage, model, request_id, edge)
        assert parse(subject) == parse(subjects.live(subject))
        assert parse(subject) == Parsed(namespace, kind, stage, model, request_id, edge)
    for kind, plain in ((WORK, subjects.work), (DEAD, subjects.dead)):
        assert parse(plain(stage, model, request_id)) == Parsed(namespace, kind, stage, model, request_id, None)


@pytest.mark.parametrize("value", ["", "A", "a.b", "a b", "*", ">", "é", "a" * 65, "a\n", "a/b"])
def test_what_would_break_a_subject_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="cannot be part of a subject"):
        token(value)
    with pytest.raises(ConfigError):
        Subjects(value)
    with pytest.raises(ConfigError):
        SUBJECTS.work("codec", "wave", value)
    with pytest.raises(ConfigError):
        SUBJECTS.of_request(WORK, value)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "omni.v1.work.codec.wave",
        "omni.v2.work.codec.wave.r1",
        "omni.v1.work.codec.wave.r1.edge",
        "omni.v1.feed.codec.wave.r1",
        "omni.v1.work-live.codec.wave.r1",
        "omni.v1.ctl.request.all.r1",
        "omni.v1.other.codec.wave.r1",
        "omni.v1.work.codec.*.r1",
        "omni.v1.work.codec..r1",
        "omni.v1.feed.codec.wave.r1.e.more",
    ],
)
def test_foreign_subjects_are_refused(subject: str) -> None:
    with pytest.raises(ConfigError, match="not a subject of ours"):
        parse(subject)


def _matches(pattern: str, subject: str) -> bool:
    want, have = pattern.split("."), subject.split(".")
    for position, part in enumerate(want):
        if part == ">":
            return len(have) > position
        if position >= len(have) or part not in ("*", have[position]):
            return False
    return len(want) == len(have)


def test_a_purge_covers_all_of_one_request_and_nothing_else() -> None:
    for kind, subject, other in (
        (WORK, SUBJECTS.work("codec", "wave", "r1"), SUBJECTS.work("codec", "wave", "r2")),
        (FEED, SUBJECTS.feed("codec", "wave", "r1", "e"), SUBJECTS.feed("r1", "r1", "r2", "r1")),
        (OUT, SUBJECTS.out("codec", "wave", "r1", "e"), SUBJECTS.out("codec", "r1", "r2", "e")),
    ):
        assert _matches(SUBJECTS.of_request(kind, "r1"), subject)
        assert not _matches(SUBJECTS.of_request(kind, "r1"), other)


def test_streams_of_different_classes_and_namespaces_do_not_meet() -> None:
    assert SUBJECTS.stream(WORK) == "OMNI_WORK"
    names = {Subjects(space).stream(kind) for space in ("a-b", "a_b", "ab") for kind in (WORK, FEED, OUT, DEAD)}
    assert len(names) == 12
    for kind in (FEED, OUT):
        assert not _matches(SUBJECTS.everything(kind), SUBJECTS.live(SUBJECTS.feed("a", "b", "c", "d")))


def test_control_subjects_meet_their_wildcards() -> None:
    assert _matches(SUBJECTS.ctl_requests(), SUBJECTS.ctl_request("r1"))
    assert _matches(SUBJECTS.presences(), SUBJECTS.presence("codec", "codec-1"))
    for subject in (SUBJECTS.ctl_instance("codec-1"), SUBJECTS.ctl_everyone(), SUBJECTS.presence("codec", "c")):
        assert not _matches(SUBJECTS.ctl_requests(), subject)
