"""What a run needs and a server lacks, with the remedy."""

import dataclasses

import pytest

from isocompute_jax.service.client.member import Needs, lack
from isocompute_jax.service.proto import sampler_pb2 as pb

NOTHING = Needs(routing=False, turn_tokens=0, token_versions=False)
STATUS = dict(engine="vllm", engine_version="0.26.0", limits=pb.Limits(max_model_len=64))


@pytest.mark.parametrize(
    ("needs", "status", "said"),
    [
        ({}, {"no_token_versions": True}, ""),
        ({"token_versions": True}, {}, ""),
        ({"token_versions": True}, {"no_token_versions": True}, "runs vllm 0.26.0, which does not say which weights"),
        ({"turn_tokens": 64}, {"turns": True}, ""),
        ({"turn_tokens": 65}, {"turns": True}, "--max_model_len=65"),
        ({"routing": True}, {}, "start it with --routing"),
    ],
)
def test_what_is_lacking_is_said(needs, status, said):
    found = lack(pb.StatusReply(**STATUS | status), dataclasses.replace(NOTHING, **needs))
    assert said in found and bool(found) == bool(said)
