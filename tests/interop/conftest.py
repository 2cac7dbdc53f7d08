"""Tests of this room may be `async`, as the SDK's."""

from tests.sdk.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
