"""Devices where they bring most: the contract of every policy, and what this one adds."""

from __future__ import annotations

from tests.scheduler.policies import contract

from oarlock.scheduler.policies import goodput


class TestContract(contract.PolicyContract):
    policy = goodput
