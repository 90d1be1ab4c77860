"""A recording on its way to the encoder and its features on their way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omnistage.contracts import EncodedReference, EncodeReference, Failure, Inline, TensorRef
from omnistage.errors import InvalidRequest, TensorStoreFull
from omnistage.pipelines.catalogue import REFERENCE
from omnistage.tensors.plane import TensorPlane
from omnistage_gateway.dispatch.interface import Plan, VoiceFeatures

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import MemoryWorld, Stage

RECORDING = (np.arange(48_000) % 251).astype(np.int16)


def plan(world: MemoryWorld) -> Plan:
    spec = world.speak().spec

    def build(request_id: str, node: str, route: Any) -> EncodeReference:
        nothing = Inline(data=b"", dtype="int16", shape=(0,))
        return EncodeReference(
            request_id=request_id,
            pipeline="reference",
            node=node,
            route=dict(route),
            payload=nothing,
            sample_rate_hz=24_000,
        )

    return Plan(model="voice", spec=spec, pipeline=REFERENCE, build=build, payload=RECORDING)


async def encode(stage: Stage, work: EncodeReference) -> None:
    assert isinstance(work.payload, TensorRef), "more than travels inside a message"
    samples = await stage.world.plane.unpack(work.payload)
    writer = await stage.open("codec-gateway")
    codes = np.full((200, 16), int(samples.sum()) % 2048, np.int32)
    await writer.send(
        EncodedReference,
        codes=await stage.world.plane.pack(codes, request_id=work.request_id, lease_s=60.0),
        embedding=await stage.world.plane.pack(
            samples[:1024].astype(np.float32), request_id=work.request_id, lease_s=60.0
        ),
        frame_rate_hz=12.5,
        fingerprint="f",
    )
    await writer.finish()


async def nothing_kept(world: MemoryWorld) -> None:
    """Neither blocks of the stage nor those of the gateway."""
    await world.dispatcher.settled()
    assert world.plane.usage()["memory"][0] == 0
    # The protocol that the dispatcher asks of its plane has no usage, which only tests of leftovers want to know.
    assert world.dispatcher._plane.usage()["memory"][0] == 0  # type: ignore[attr-defined]


async def test_samples_arrive_features_come_back_and_nothing_is_left(world: MemoryWorld) -> None:
    await world.serve("wave", encode)
    (features,) = await world.collect(plan(world), "r1")
    assert isinstance(features, VoiceFeatures)
    assert (features.codes == int(RECORDING.sum()) % 2048).all()
    assert features.codes.shape == (200, 16)
    assert features.embedding is not None
    assert features.embedding.tolist() == RECORDING[:1024].tolist()
    await nothing_kept(world)
    assert world.left() == []
    assert world.claimed == ["wave:r1"]


async def test_an_encoder_s_refusal_keeps_its_status(world: MemoryWorld) -> None:
    async def refuse(stage: Stage, work: EncodeReference) -> None:
        writer = await stage.open("codec-gateway")
        await writer.fail(Failure(code="invalid_value", message="too short", status=400))

    await world.serve("wave", refuse)
    with pytest.raises(InvalidRequest, match="too short"):
        await world.collect(plan(world))
    await nothing_kept(world)


async def test_no_room_for_a_recording_is_told_and_frees_the_place(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> Any:
        raise TensorStoreFull("no room")

    monkeypatch.setattr(TensorPlane, "pack", full)
    with pytest.raises(TensorStoreFull):
        await world.collect(plan(world))
    await world.dispatcher.settled()
    assert (world.dispatcher.running, world.dispatcher.waiting) == (0, 0)
    monkeypatch.undo()
    await world.serve("wave", encode)
    assert len(await world.collect(plan(world))) == 1
