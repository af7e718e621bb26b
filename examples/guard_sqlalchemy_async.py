"""The guard on a SQLAlchemy AsyncSession: two deliveries of one payment, one entry.

python examples/guard_sqlalchemy_async.py                     a SQLite file of its own (aiosqlite)
ONCEBOX_DATABASE_URL=postgresql+asyncpg://localhost/shop python examples/guard_sqlalchemy_async.py
"""

import asyncio
import os
import tempfile

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncebox import Inbox
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/shop.db"
inbox = Inbox("billing")


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "guard_entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


async def deliver(session: AsyncSession, event_id: str, amount: int) -> bool:
    async with session.begin(), inbox.once(session, event_id, payload={"amount": amount}) as claim:
        if claim.first:
            session.add(Entry(amount=amount))
    return claim.first


async def scene() -> None:
    engine = create_async_engine(URL.replace("sqlite://", "sqlite+aiosqlite://"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with async_sessionmaker(engine)() as session:
        for _ in range(2):
            print("first" if await deliver(session, "evt-42", 100) else "duplicate")
        print(f"entries: {await session.scalar(select(func.count()).select_from(Entry))}")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


def main() -> None:
    migrate(URL)
    asyncio.run(scene())


if __name__ == "__main__":
    main()
