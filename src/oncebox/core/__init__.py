"""What the inbox decides, without doing any of it: flows that yield steps. No I/O, no drivers."""
