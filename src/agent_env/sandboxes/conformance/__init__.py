"""What every provider must do, as checks that any provider can run against itself.

A check is named as a sentence and raises `AssertionError` when the sentence does not hold:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_provider(check): asyncio.run(check(lambda: MyProvider(...)))
"""

from agent_env.sandboxes.conformance.checks import CHECKS, Check, MakeProvider

__all__ = ["CHECKS", "Check", "MakeProvider"]
