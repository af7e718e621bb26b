"""Webhooks: an ASGI application whose endpoints verify, claim, handle or store, and only then say 2xx.

::

    hooks = Webhooks(app)
    hooks.add("/stripe", billing, verify=stripe(os.environ["STRIPE_SECRET"]))

`oncebox run shop:app --http 127.0.0.1:8000` serves it, and so does anything that mounts ASGI applications.
"""

from oncebox.webhooks.endpoints import Webhooks
from oncebox.webhooks.signatures import Proof, Unverified, Verifier, github, standard, stripe, token

__all__ = ["Proof", "Unverified", "Verifier", "Webhooks", "github", "standard", "stripe", "token"]
