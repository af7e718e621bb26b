"""A parcel platform of three services, each with its own database, joined by a broker.

    scanners ──webhook──▶ intake ──broker──▶ tracking ──broker──▶ notify ──HTTP──▶ text message provider
    handhelds ──broker──▶

    make demo-chain                               runs it all, kills processes meanwhile, and counts
    python -m examples.delivery --scans 500 --kills 20
    python -m examples.delivery --database postgresql://localhost/postgres --broker amqp://localhost/

- `intake` takes a scan however it comes (webhook, broker, both, again) and passes it on once.
- `tracking` moves the parcel's state on, one version after the other.
- `notify` has the receiver told: a call to the outside, with one idempotency key per notice.

Every scan leads to one state change and one notification request, whatever dies in between.
"""
