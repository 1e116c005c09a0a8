"""The core of the launchers: what they share on all platforms, behind one interface."""
