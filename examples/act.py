"""Asks any policy server for actions, without rollcast: `python examples/act.py HOST:PORT PROTO_FOLDER`.

This program needs grpcio, grpcio-tools and numpy, and rollcast's folder proto/.
"""

import sys

import grpc
import numpy as np

address, proto = sys.argv[1:]
sys.path.insert(0, proto)
messages, services = grpc.protos_and_services("rollcast/v1/policy.proto")
tensors = grpc.protos("rollcast/v1/tensor.proto")

with grpc.insecure_channel(address) as channel:
    policy = services.PolicyServiceStub(channel)
    observation = np.zeros((1, 4), "<f4")
    request = messages.ActRequest(
        observation=[
            tensors.NamedTensor(
                tensor=tensors.Tensor(
                    dtype=tensors.DATA_TYPE_FLOAT32, shape=observation.shape, data=observation.tobytes()
                )
            )
        ],
        deterministic=True,
    )
    answer = policy.Act(request, timeout=5)
    print(f"policy {answer.policy_version} would do {np.frombuffer(answer.action.data, '<i8').tolist()}")
