"""One file per database client: how steps are performed on it. Optional imports live only here."""
