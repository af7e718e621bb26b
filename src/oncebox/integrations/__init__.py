"""Ready pieces for other people's libraries; each imports its library when it is imported itself."""
