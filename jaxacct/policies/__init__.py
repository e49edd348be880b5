"""Policies: how a run chooses its noise and its sampling rate, step by step, and when it stops."""

from jaxacct.policies.adaptive import AdaptiveBatchSize, AdaptiveNoise
from jaxacct.policies.early_stopping import EarlyStopping
from jaxacct.policies.fixed import Constant, Schedule
from jaxacct.policies.policy import FinitePolicy, Policy, Setting
from jaxacct.policies.remaining import SpendRemaining

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
