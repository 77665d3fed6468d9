"""A simulated crm: leads and people, what it tells of them, and what should become of each record."""
