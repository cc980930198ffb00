import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from rollcast.actor.policies.image_networks import ImpalaResnet
from rollcast.actor.policies.networks import build_network
from rollcast.learner.algorithms.critics import CriticEnsemble, RecurrentValueCritic, ValueCritic
from rollcast.services.policies.policies import PolicySpec
from tests.unit.actor.acting_policies import batch_of, spaces_of, tensors_of

ATARI = spaces.Box(0, 255, (84, 84, 1), np.uint8)


def test_resnet_has_the_layers_of_the_paper():
    network = build_network(spaces.Box(0, 255, (72, 96, 3), np.uint8), 6, PolicySpec(network="impala_resnet"))
    torso = network.images[0]
    convolutions = [module for module in torso.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 15
    assert [tuple(layer.weight.shape[:2]) for layer in convolutions] == [
        *((16, 3), *[(16, 16)] * 4),
        *((32, 16), *[(32, 32)] * 4),
        *((32, 32), *[(32, 32)] * 4),
    ]
    assert all(layer.kernel_size == (3, 3) for layer in convolutions)
    assert tuple(torso.full.weight.shape) == (256, 32 * 9 * 12), "72 by 96, halved three times"
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(6, 256)]


def test_shallow_network_has_the_layers_of_the_paper():
    network = build_network(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6, PolicySpec(network="impala_shallow"))
    convolutions = [module for module in network.images[0].modules() if isinstance(module, nn.Conv2d)]
    assert [(layer.kernel_size[0], layer.stride[0], layer.out_channels) for layer in convolutions] == [
        (8, 4, 16),
        (4, 2, 32),
    ]
    assert tuple(network.images[0].full.weight.shape) == (256, 32 * 9 * 9)
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(6, 256)]


def test_resnet_computes_its_formula():
    torso = ImpalaResnet((37, 40, 2), "channel_first")
    image = torch.randint(0, 256, (2, 2, 37, 40), dtype=torch.uint8)
    x = image / 255.0
    with torch.no_grad():
        for parameter in torso.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        stages = list(torso.stages)
        for convolution, pool, *blocks in (stages[:4], stages[4:8], stages[8:]):
            x = nn.functional.max_pool2d(convolution(x), 3, 2, 1)
            assert pool.kernel_size == 3
            for block in blocks:
                x = x + block.second(block.first(x.relu()).relu())
        expected = torso.full(x.relu().flatten(1)).relu()
        torch.testing.assert_close(torso(image), expected, rtol=1e-4, atol=1e-5)


def test_critics_have_the_policys_torso():
    known = spaces_of(ATARI, spaces.Box(-1, 1, (2,), np.float32))
    spec = PolicySpec(network="impala_resnet", hidden_sizes=(8,))
    memory = PolicySpec(network="impala_resnet", hidden_sizes=(8,), recurrence="gru", recurrent_size=4)
    image = tensors_of(batch_of(ATARI, 3))
    assert isinstance(ValueCritic(known, spec, substep_key="0").network.images[0], ImpalaResnet)
    assert RecurrentValueCritic(known, memory, substep_key="0")(image, torch.zeros(3, 4)).shape == (3,)
    several = CriticEnsemble(known, spec, substep_key="0")
    assert several(image, torch.zeros(3, 2)).shape == (len(several), 3)
