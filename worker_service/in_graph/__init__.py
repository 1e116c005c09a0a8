"""In-graph replication: worker 0 is the client of all replicas, the other workers lend devices and read their data."""
