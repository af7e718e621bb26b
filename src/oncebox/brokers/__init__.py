"""Where messages come from and go to: one file per broker, all behind one contract."""
