"""Which message is this? Fingerprints, ids made from what is stable, and resolvers that find them.

Decides (source, id, type) for a delivery. There is no way here to make an id from a delivery tag,
a random number, a clock, or an offset alone: none of them is the same for a second delivery.
"""

from oncebox.identity.fingerprints import fingerprint

__all__ = ["fingerprint"]
