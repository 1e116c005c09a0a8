"""The worker: computes gradients, pushes them to every ps and pulls the new parameters; worker 0 is the chief too."""
