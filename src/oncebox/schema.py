"""The schema as SQL text, for people whose migrations are run by Alembic or Django.

`statements("postgresql", since=N)` gives what brings version N to the latest; put them into
`op.execute` or `RunSQL`, one by one.
"""

from oncebox.engines.migrations import latest, statements

__all__ = ["latest", "statements"]
