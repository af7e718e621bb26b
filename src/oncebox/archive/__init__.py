"""The archive: what retention forgets, as Parquet in a folder or an object store. Needs `oncebox[archive]`.

::

    for each in messages("s3://bucket/prefix", consumer="billing"):
        message = each.message(replay=True)
"""

from oncebox.archive.places import Place, open_place
from oncebox.archive.reading import messages, parts, rows
from oncebox.archive.rows import Part
from oncebox.archive.writing import keep
from oncebox.core.archived import Archived

__all__ = ["Archived", "Part", "Place", "keep", "messages", "open_place", "parts", "rows"]
