"""`oncebox demo`: the same payments, duplicates and kills, once with the usual handler, once with oncebox.

The broker lives in this process and redelivers; the workers are processes of their own that are really
killed. Afterwards an append-only table of charges is compared with what was sent.
"""
