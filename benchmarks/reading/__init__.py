"""A program whose data take a while to read, and its job."""
