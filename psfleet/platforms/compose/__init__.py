"""Fleets on a Docker engine, made by docker compose."""
