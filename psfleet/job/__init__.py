"""The job file, and the training program that it names. Imports neither TensorFlow nor Keras."""
