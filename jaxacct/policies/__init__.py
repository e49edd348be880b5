"""Policies: how a run chooses its noise and its sampling rate, step by step, and when it stops."""

from jaxacct.policies.policy import (
    AdaptiveBatchSize,
    AdaptiveNoise,
    Constant,
    EarlyStopping,
    FinitePolicy,
    Policy,
    Schedule,
    Setting,
    SpendRemaining,
)

__all__ = [
    "AdaptiveBatchSize",
    "AdaptiveNoise",
    "Constant",
    "EarlyStopping",
    "FinitePolicy",
    "Policy",
    "Schedule",
    "Setting",
    "SpendRemaining",
]
