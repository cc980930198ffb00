"""The messages of a client with environments that dials in, in their order."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rollcast.services.environments.codec import EpisodeValueNames, request_from_bytes
from rollcast.services.environments.dialled_stream import DialledStream
from rollcast.services.wire.seal import StreamSeals, seal
from rollcast.v1 import environment_pb2
from tests.fuzz.message_targets import LOWERED_SPACES, SPACES_BYTES
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import Target
from tests.fuzz.protobuf_mutator import stream_mutator
from tests.play_messages import (
    FLAT,
    GUNNER_SEES,
    INTERRUPTED,
    REWARDED,
    TEAM,
    TERMINATED,
    agent,
    hello,
    turn,
    turns,
)


def play(folder: Path) -> Target:
    """A stream of `EnvironmentService.Play`; each environment gets its actions as soon as it asks."""
    gunner = agent(observation=GUNNER_SEES, substep=1)
    plain = (
        _stream(hello(), turns(turn()), turns(turn(agent(TERMINATED, reward=1.0), score=2.0), turn())),
        _stream(hello(n_envs=2), turns(turn(), turn(environment=1)), turns(turn(agent(INTERRUPTED), environment=1))),
        _stream(hello(offered=TEAM), turns(turn(agent(), agent(number=1))), turns(turn(agent(REWARDED), gunner))),
    )
    seeds = plain + tuple(join_pieces(map(seal, split_pieces(stream))) for stream in plain)
    actions = {
        key: np.zeros(substep.action.shape, substep.action.dtype)
        for spaces in (FLAT, TEAM)
        for key, substep in spaces.items()
    }

    def decode(content: bytes) -> int:
        stream, seals, n_turns = DialledStream(EpisodeValueNames()), StreamSeals(), 0
        for number, piece in enumerate(split_pieces(content)):
            request = request_from_bytes(seals.open(piece))
            if not number:
                stream.hello(request)
                stream.named("fuzz")
                continue
            for taken in stream.turns(request):
                n_turns += 1
                if taken.n_running:
                    agents = stream.answer(taken.environment)
                    chosen = [actions[key] for key, _ in agents if key in actions]
                    if len(chosen) == len(agents):
                        stream.codec.actions(taken.environment, agents, chosen)
        return n_turns

    return Target(
        name="play",
        decode=decode,
        seeds=seeds,
        mutate=stream_mutator(environment_pb2.PlayRequest, seeds, serialize=_resealed),
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
    )


def _stream(*requests: environment_pb2.PlayRequest) -> bytes:
    return join_pieces(request.SerializeToString() for request in requests)


def _resealed(request: Any, rng: Random) -> bytes:
    """Serialises a request. Nearly all that had a digest get theirs, which hides the code behind it otherwise."""
    if not request.digest or rng.random() < 0.05:
        return request.SerializeToString()  # type: ignore[no-any-return]  # a message's
    request.ClearField("digest")
    return seal(request.SerializeToString())
