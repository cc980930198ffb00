"""Your own learner, with samples from a replay buffer in another process.

rollcast replay serve --env-id CartPole-v1 --replay.sampler prioritized
rollcast actor --env-id CartPole-v1
python examples/replay_client.py HOST:PORT [N_UPDATES]
"""

import sys

import torch
from torch import nn

from rollcast.services import FLAT_SUBSTEP, ReplayClient

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
n_updates = int(sys.argv[2]) if len(sys.argv) > 2 else 1000

with ReplayClient(address) as replay:
    spaces = replay.info().spaces[FLAT_SUBSTEP]
    network = nn.Sequential(nn.Linear(spaces.observation.shape[0], 64), nn.ReLU(), nn.Linear(64, int(spaces.action.n)))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    ignored = 0
    for batch in replay.samples(batch_size=64, n_batches=n_updates):
        columns = batch.substeps[FLAT_SUBSTEP]
        observation = torch.tensor(columns.observation[""][0])  # [B, 4]: transitions have one step
        action = torch.tensor(columns.action[0])
        next_observation = torch.tensor(columns.next_observation[""])
        with torch.no_grad():
            future = network(next_observation).max(1).values * torch.tensor(~batch.terminated[0])
            target = torch.tensor(batch.reward[0]) + torch.tensor(batch.discount) * future
        value = network(observation).gather(1, action.long()[:, None]).squeeze(1)
        error = target - value
        loss = (torch.tensor(batch.weights) * error.square()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        ignored += replay.update_priorities(batch.keys, error.detach().abs().numpy())
    print(f"{n_updates} updates, loss {loss.item():.3f}, {ignored} priorities came too late")
    print(f"{replay.info().size} transitions in the buffer")
