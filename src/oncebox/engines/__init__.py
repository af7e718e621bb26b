"""Per database: its SQL, its features, its error map. No connection is opened here."""
