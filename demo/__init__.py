"""The demonstration: embedded servers, a simulated crm and a live table; production imports none of it."""
