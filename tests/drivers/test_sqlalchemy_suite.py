"""The core's behavioural suite in both modes, with handlers that get the app's session."""

from tests.core import (
    test_bad_input,
    test_batches,
    test_conflicts,
    test_failure_policy,
    test_leases,
    test_one_effect,
    test_results,
    test_timeouts,
)
from tests.drivers.suites import of

globals().update(
    of(
        test_bad_input,
        test_batches,
        test_conflicts,
        test_failure_policy,
        test_leases,
        test_one_effect,
        test_results,
        test_timeouts,
    )
)
