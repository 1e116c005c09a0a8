"""What the tests share: sample data, fleets under test on each platform, and reference implementations."""
