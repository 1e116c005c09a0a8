"""`psfleet serve`: whose models are served, and the processes of a service: started, watched, and ended."""
