"""SQLAlchemy 2: an app on the user's engine or sessionmaker.

The engine serves the effects' transactions: handlers get a Session or a Connection of it, joined to
the claim. What the runtime writes beside them (heartbeats, markers) goes over a few connections of
its own, made by the engine's recipe but outside its pool.
"""

from oncebox.drivers.sqlalchemy.database import SqlAlchemyDatabase

__all__ = ["SqlAlchemyDatabase"]
