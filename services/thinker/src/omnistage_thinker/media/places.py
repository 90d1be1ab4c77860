"""Places of media in a prompt's tokens: one placeholder becomes as many as there are results of a tower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.contracts import ChatMessage
from omnistage.errors import InvalidRequest
from omnistage_thinker.media.prepared import PreparedMedia


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Ids of the tokens around and in the places of media, and how many tokens media make.

    Attributes:
        audio, image, video: placeholders.
        audio_start, audio_end: around sound.
        merge_size: so many rows and columns of patches are one token.
        positions_per_second: how far the time axis moves in a second of video.
        audio_tokens: columns of a spectrogram -> tokens.
    """

    audio: int
    image: int
    video: int
    audio_start: int
    audio_end: int
    merge_size: int
    positions_per_second: int
    audio_tokens: Callable[[int], int]


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Turns as chat templates read them: content is a text, or a list of parts where there are media."""
    return [{"role": message.role, "content": _content(message)} for message in messages]


def _content(message: ChatMessage) -> str | list[dict[str, str]]:
    if not message.media:
        return message.content
    parts: list[dict[str, str]] = []
    done = 0
    for media in message.media:
        if media.at > done:
            parts.append({"type": "text", "text": message.content[done : media.at]})
        # Templates look for the type or for the key of that name.
        parts.append({"type": media.kind, media.kind: ""})
        done = max(done, media.at)
    if done < len(message.content):
        parts.append({"type": "text", "text": message.content[done:]})
    return parts


def expand(tokens: Sequence[int], media: PreparedMedia, places: Placeholders) -> list[int]:
    """Tokens with a place for each result of a tower, where each of the media had one placeholder.

    Raises:
        InvalidRequest: placeholders and media do not match; a text that holds a placeholder's name does that.
    """
    kinds = {places.audio: "audio", places.image: "image", places.video: "video"}
    if tuple(kinds[token] for token in tokens if token in kinds) != media.order:
        raise InvalidRequest("the texts hold names of placeholders of media", param="messages")
    clips = iter([places.audio_tokens(frames) for frames in media.clip_frames()])
    images, videos = iter(media.image_grids()), _videos(media, places, clips)
    out: list[int] = []
    for token in tokens:
        if token == places.audio:
            out += [token] * next(clips)
        elif token == places.image:
            time, tall, wide = next(images)
            out += [token] * (time * tall * wide // places.merge_size**2)
        elif token == places.video:
            out += next(videos)
        else:
            out.append(token)
    return out


def _videos(media: PreparedMedia, places: Placeholders, clips: Iterator[int]) -> Iterator[list[int]]:
    """Tokens of each video; its sound, if it is heard, among them in the order of time, pictures before sound."""
    described = zip(media.video_grids(), media.seconds_per_step(), media.video_has_sound, strict=True)
    for (time, tall, wide), seconds, has_sound in described:
        each = tall * wide // places.merge_size**2
        if not has_sound:
            yield [places.video] * (time * each)
            continue
        seen = [(step * seconds * places.positions_per_second, 0) for step in range(time) for _ in range(each)]
        heard = [(float(step), 1) for step in range(next(clips))]
        inside = [places.audio if is_sound else places.video for _, is_sound in sorted(seen + heard)]
        yield [places.audio_start, *inside, places.audio_end]
