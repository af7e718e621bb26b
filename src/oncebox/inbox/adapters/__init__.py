"""One file per kind of handle: how the guard's steps are performed on it.

A module here is imported only after its driver was, by the user: a handle is known by the name of
its class, so that no driver is needed to look at one.
"""

from oncebox.inbox.adapters.known import adapter_for

__all__ = ["adapter_for"]
