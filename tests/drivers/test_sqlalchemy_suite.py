"""The core's behavioural suite in both modes, with handlers that get the app's session: what a session has a
part in. What is decided before a handler has one (input, verdicts, results) is the core's own."""

from tests.core import test_batches, test_conflicts, test_leases, test_one_effect, test_timeouts
from tests.drivers.suites import of

globals().update(of(test_batches, test_conflicts, test_leases, test_one_effect, test_timeouts))
