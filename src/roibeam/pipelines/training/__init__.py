"""Say what belongs here."""
