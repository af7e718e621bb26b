"""The guard on Django's connection, inside atomic(): two deliveries of one payment, one entry.

python examples/guard_django.py
"""

import tempfile

import django
from django.conf import settings
from django.db import connection, transaction

from oncebox import Inbox
from oncebox.schema import migrate

FILE = f"{tempfile.mkdtemp()}/shop.db"
inbox = Inbox("billing")
# A project has this in its settings module.
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FILE}})
django.setup()


def deliver(event_id: str, amount: int) -> bool:
    with transaction.atomic(), inbox.once(connection, event_id, payload={"amount": amount}) as claim:
        if claim.first:
            # Models do as well: Entry.objects.create(amount=amount)
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO entry VALUES (%s)", [amount])
    first: bool = claim.first
    return first


def main() -> None:
    migrate(f"sqlite:///{FILE}")  # or oncebox.schema.statements() in a RunSQL migration
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE entry (amount INTEGER NOT NULL)")
        for _ in range(2):
            print("first" if deliver("evt-42", 100) else "duplicate")
        cursor.execute("SELECT count(*) FROM entry")
        print(f"entries: {cursor.fetchone()[0]}")


if __name__ == "__main__":
    main()
