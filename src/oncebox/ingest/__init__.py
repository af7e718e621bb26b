"""Old data from files and standard input, as messages of a consumer: `oncebox ingest`."""
