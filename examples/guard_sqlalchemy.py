"""The guard on a SQLAlchemy Session: two deliveries of one payment, one entry.

python examples/guard_sqlalchemy.py
"""

import tempfile

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from oncebox import Inbox
from oncebox.schema import migrate

URL = f"sqlite:///{tempfile.mkdtemp()}/shop.db"
inbox = Inbox("billing")
sessions = sessionmaker(create_engine(URL))


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


def deliver(session: Session, event_id: str, amount: int) -> bool:
    with session.begin(), inbox.once(session, event_id, payload={"amount": amount}) as claim:
        if claim.first:
            session.add(Entry(amount=amount))
    return claim.first


def main() -> None:
    migrate(URL)
    with sessions() as session:
        Base.metadata.create_all(session.get_bind())
        for _ in range(2):
            print("first" if deliver(session, "evt-42", 100) else "duplicate")
        print(f"entries: {session.scalar(select(func.count()).select_from(Entry))}")


if __name__ == "__main__":
    main()
