"""Switches for bad days."""

import os

SWITCHES = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def turn_on(switches=SWITCHES):
    for name, value in switches.items():
        os.environ[name] = value  # culprit
