"""QuaRL: what low precision costs and gains in reinforcement learning."""
