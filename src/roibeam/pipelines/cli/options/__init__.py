"""Options that several commands share. No work is done here."""
