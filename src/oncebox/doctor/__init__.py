"""What is wrong, or will be: the database, the brokers, the policies, and what stands still.

Reads only. Each finding has a code that stays the same, and says what was found, why it matters and what to do.
"""

from oncebox.doctor.examine import Report, examine
from oncebox.doctor.findings import KINDS, Finding
from oncebox.doctor.kinds import Severity

__all__ = ["KINDS", "Finding", "Report", "Severity", "examine"]
