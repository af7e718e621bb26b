"""Everything that can be timed on the same messages: one class per way to handle them."""
