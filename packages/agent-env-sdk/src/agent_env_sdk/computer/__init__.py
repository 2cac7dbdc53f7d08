"""Computers as environments: write the methods that capture a screen and send input, and serve the rest. Needs the extra `computer`."""

from .driver import ComputerDriver, computer_driver
from .faults import fault
from .frames import Display
from .platforms import Platform
from .session import CommandResult
from .settings import SETTINGS_VARIABLE, Settings

__all__ = ["SETTINGS_VARIABLE", "CommandResult", "ComputerDriver", "Display", "Platform", "Settings", "computer_driver", "fault"]
