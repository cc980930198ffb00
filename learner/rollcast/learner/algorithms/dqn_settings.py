"""DQN's settings. Apart from the algorithm, so that `rollcast --help` need not import torch."""

from rollcast.learner.algorithms.q_learning_settings import QLearningSettings


class DqnSettings(QLearningSettings):
    """Everything that DQN can be told; the defaults solve CartPole-v1 and are a place to start elsewhere.

    How many steps are folded into a transition, and how transitions are chosen, is the replay buffer's affair.
    """
