"""A fleet as Kubernetes objects."""
