"""The front of a service: takes queries of clients, asks the members, and answers."""
