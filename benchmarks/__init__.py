"""What protection costs: paired, interleaved measurements against unprotected code. `make bench`."""
