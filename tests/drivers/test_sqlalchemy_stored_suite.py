"""The core's behavioural suite of stored messages, with handlers that get the app's session."""

from tests.core import test_stored
from tests.core.fixtures import stored
from tests.drivers.suites import of

pytestmark = stored
globals().update(of(test_stored))
