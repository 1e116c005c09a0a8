"""A fleet as a docker compose file."""
