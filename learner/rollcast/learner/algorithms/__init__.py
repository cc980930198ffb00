"""The `Algorithm` interface for trainers, and the algorithms: IMPALA, PPO, APPO, SAC, DQN and R2D2."""
