"""A member of a service: a model that answers the queries which the front sends."""
