"""The core's behavioural suite, with handlers that get the app's session."""

from tests.core.test_conflicts import *  # noqa: F403
from tests.core.test_one_effect import *  # noqa: F403
