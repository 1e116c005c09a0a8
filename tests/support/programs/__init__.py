"""Training programs of the tests; each file stands alone, so that it can be copied into a program folder."""
